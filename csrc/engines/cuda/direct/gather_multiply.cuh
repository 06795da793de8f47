// Arithmetic of the gather kernel: from shared memory to a thread's accumulators.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/direct/gather_block.cuh"

namespace convx {

// Adds kTaps neighbouring taps of one class. `window` holds the strip's source values; the weights
// of neighbouring taps are weight_step apart.
template <int kTaps, int kPerThread, typename Acc>
__device__ __forceinline__ void multiply_taps(Acc (&sum)[kPerThread][kStrip], const Acc* window,
                                              const Acc* weights, int weight_step) {
  constexpr int kWindow = (kStrip + kTaps - 1 + 3) / 4 * 4;
  Acc values[kWindow / 4][4];
#pragma unroll
  for (int i = 0; i < kWindow / 4; ++i) load_vec4(values[i], window + 4 * i);
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    Acc weight[kPerThread];
    if constexpr (kPerThread % 4 == 0) {
#pragma unroll
      for (int f = 0; f < kPerThread; f += 4) {
        Acc four[4];
        load_vec4(four, weights + tap * weight_step + f);
#pragma unroll
        for (int i = 0; i < 4; ++i) weight[f + i] = four[i];
      }
    } else {
#pragma unroll
      for (int f = 0; f < kPerThread; ++f) weight[f] = weights[tap * weight_step + f];
    }
#pragma unroll
    for (int f = 0; f < kPerThread; ++f) {
#pragma unroll
      for (int x = 0; x < kStrip; ++x) {
        sum[f][x] += weight[f] * values[(x + tap) / 4][(x + tap) % 4];
      }
    }
  }
}

// Rows of kTaps taps for the most common kernel widths, without an inner loop.
template <int kTaps, typename Tile, typename Acc>
__device__ __forceinline__ void multiply_rows(const GatherChunk& chunk, const Acc* line,
                                              const Acc* weights, int row_pitch, int plane,
                                              Acc (&sum)[Tile::kPerThread][kStrip]) {
  for (int c = 0; c < chunk.channels; ++c) {
    const Acc* window = line;
    for (int j = 0; j < chunk.row_taps; ++j) {
      multiply_taps<kTaps, Tile::kPerThread>(sum, window, weights, Tile::kFilters);
      window += row_pitch;
      weights += kTaps * Tile::kFilters;
    }
    line += plane;
  }
}

// Taps that each have their own window.
template <typename Tile, typename Acc>
__device__ __forceinline__ void multiply_single_taps(const GatherChunk& chunk, const Acc* line,
                                                     const Acc* weights, int class_pitch,
                                                     int row_pitch, int plane,
                                                     Acc (&sum)[Tile::kPerThread][kStrip]) {
  for (int c = 0; c < chunk.channels; ++c) {
    for (int j = 0; j < chunk.row_taps; ++j) {
      const Acc* window = line + j * row_pitch;
      for (int s = 0; s < chunk.column_taps; ++s) {
        multiply_taps<1, Tile::kPerThread>(sum, window, weights, Tile::kFilters);
        window += class_pitch;
        weights += Tile::kFilters;
      }
    }
    line += plane;
  }
}

template <typename Tile, typename Acc>
__device__ __forceinline__ void multiply_chunk(const GatherParams& p, const GatherBlock& block,
                                               const GatherChunk& chunk, const Acc* strip_base,
                                               const Acc* weights,
                                               Acc (&sum)[Tile::kPerThread][kStrip]) {
  const AxisParams& row = *block.row;
  const AxisParams& column = *block.column;
  const int row_pitch = column.row_pitch;
  const int row_classes = row.staged_classes;
  const int column_classes = min(column.staged_classes, chunk.column_taps);
  const int plane = p.tile_images * row_classes * row.staged_length * row_pitch;
  if (row_classes == 1 && column_classes == 1) {
    if (chunk.column_taps == 3) {
      return multiply_rows<3, Tile>(chunk, strip_base, weights, row_pitch, plane, sum);
    }
    if (chunk.column_taps == 1) {
      return multiply_rows<1, Tile>(chunk, strip_base, weights, row_pitch, plane, sum);
    }
  }
  if (row_classes == 1 && column_classes == chunk.column_taps) {
    return multiply_single_taps<Tile>(chunk, strip_base, weights, column.class_pitch, row_pitch,
                                      plane, sum);
  }
  const int class_step = row.staged_length * row_pitch;
  const int class_pitch = column.class_pitch;
  const int tap_step = column_classes * Tile::kFilters;
  const int taps_per_class = chunk.column_taps / column_classes;
  const int longer_classes = chunk.column_taps % column_classes;  // these have one more tap
  for (int c = 0; c < chunk.channels; ++c) {
    const Acc* line = strip_base + c * plane;
    int row_class = 0;
    for (int j = 0; j < chunk.row_taps; ++j) {  // tap j: class j mod classes, row j / classes
      for (int s = 0; s < column_classes; ++s) {
        const Acc* window = line + s * class_pitch;
        const Acc* w = weights + s * Tile::kFilters;
        int taps = taps_per_class + (s < longer_classes ? 1 : 0);
        for (; taps >= 4; taps -= 4) {
          multiply_taps<4, Tile::kPerThread>(sum, window, w, tap_step);
          window += 4;
          w += 4 * tap_step;
        }
        if (taps == 3) {
          multiply_taps<3, Tile::kPerThread>(sum, window, w, tap_step);
        } else if (taps == 2) {
          multiply_taps<2, Tile::kPerThread>(sum, window, w, tap_step);
        } else if (taps == 1) {
          multiply_taps<1, Tile::kPerThread>(sum, window, w, tap_step);
        }
      }
      weights += chunk.column_taps * Tile::kFilters;
      line += class_step;
      if (++row_class == row_classes) {
        row_class = 0;
        line += row_pitch - row_classes * class_step;
      }
    }
  }
}

template <typename Tile, typename Acc>
__device__ inline void clear_sums(Acc (&sum)[Tile::kPerThread][kStrip]) {
#pragma unroll
  for (int f = 0; f < Tile::kPerThread; ++f) {
#pragma unroll
    for (int x = 0; x < kStrip; ++x) sum[f][x] = 0;
  }
}

}  // namespace convx
