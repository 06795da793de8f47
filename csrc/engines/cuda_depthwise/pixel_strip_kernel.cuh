// Depthwise convolution with 3x3 kernels in channels_last, entirely in registers: forward, and
// stride-1 input gradient. The counterpart of strip_kernel.cuh.
//
//     y[p][q][c] = bias[c] + sum over r, s of  x[row (p, r)][column (q, s)][c] * w[c][r][s]
//
//      columns  --->                    A thread computes 4 channels of two output columns (one
//      +---+---+---+---+                if the stride is 2). The neighbouring threads compute the
//      | # | # | # | # |  source row    other channels, then further columns.
//      +---+---+---+---+
//      |   |   |   |   |  next row      Each source row is read once, adds to the accumulators of
//      +---+---+---+---+                all output rows that see it, and is dropped.
//
// Pixels beside a thread's columns come from L1, because its neighbours have just loaded them. A
// step is `stride` source rows and completes one output row. There is no shared memory.
// Grid: channels fastest, then columns, segments of the rows, images.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda_depthwise/depthwise_params.h"
#include "engines/cuda_depthwise/strip_row.cuh"

namespace convx {

// The pixels of one source row that a thread's outputs see, 4 channels each.
template <typename T, int kPixels>
struct PixelRow {
  static constexpr int kWords = kDepthwiseVector * sizeof(T) / 4;
  uint32_t words[kPixels][kWords];

  // `at` is the first pixel in row y. Pixel i is loaded only in rows 0 to limits[i] - 1; it is zero
  // elsewhere.
  __device__ __forceinline__ void load(const T* at, int64_t pixel_step, int y,
                                       const int (&limits)[kPixels]) {
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const bool valid = static_cast<unsigned>(y) < static_cast<unsigned>(limits[i]);
      load_words<kWords>(words[i], at + i * pixel_step, valid);
    }
  }

  __device__ __forceinline__ void widen_to(float (&window)[kPixels][kDepthwiseVector]) const {
    constexpr int kElements = 4 / sizeof(T);  // per word
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) widen(window[i], w * kElements, words[i][w], T{});
    }
  }
};

// Loads all taps of 4 channels.
template <typename T>
__device__ __forceinline__ void load_weights(
    const PixelStripParams& p, int channel,
    float (&weight)[kPixelStripTaps][kPixelStripTaps][kDepthwiseVector]) {
  constexpr int kTaps = kPixelStripTaps;
  const T* const weights = static_cast<const T*>(p.t.weight);
  if (p.dense_weights) {
    // Weights of neighbouring threads are far apart. Vector loads touch far fewer sectors.
    PixelRow<T, kTaps * kTaps> words;
#pragma unroll
    for (int i = 0; i < kTaps * kTaps; ++i) {
      const T* const from = weights + channel * (kTaps * kTaps) + i * kDepthwiseVector;
      load_words<PixelRow<T, 1>::kWords>(words.words[i], from, true);
    }
    float flat[kTaps * kTaps][kDepthwiseVector];  // elements in [channel][tap] order
    words.widen_to(flat);
#pragma unroll
    for (int i = 0; i < kTaps * kTaps * kDepthwiseVector; ++i) {
      const int tap = i % (kTaps * kTaps);
      weight[tap / kTaps][tap % kTaps][i / (kTaps * kTaps)] =
          flat[i / kDepthwiseVector][i % kDepthwiseVector];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kTaps * kTaps * kDepthwiseVector; ++i) {
      const int c = i % kDepthwiseVector, tap = i / kDepthwiseVector;
      const int64_t offset = p.t.locate_weight(channel + c, tap / kTaps, tap % kTaps);
      weight[tap / kTaps][tap % kTaps][c] = to_accumulate(__ldg(weights + offset));
    }
  }
}

template <typename T, int kStride>
__global__ void __launch_bounds__(kDepthwiseThreads, kPixelStripBlocks)
    pixel_strip_kernel(const __grid_constant__ PixelStripParams p) {
  constexpr int kTaps = kPixelStripTaps;
  constexpr int kColumns = pixel_strip_columns(kStride);
  constexpr int kPixels = (kColumns - 1) * kStride + kTaps;
  constexpr int kAhead = pixel_strip_steps_ahead(sizeof(T));
  // Output rows that see a step: sum[m] belongs to the m-th row before the newest.
  constexpr int kSums = (kTaps + kStride - 1) / kStride;
  using Row = PixelRow<T, kPixels>;

  int index = blockIdx.x * kDepthwiseThreads + threadIdx.x;
  if (index >= p.threads) return;
  const DepthwiseTensors& t = p.t;
  const int channel = p.by_vectors.split(index) * kDepthwiseVector;
  const int column = p.by_columns.split(index) * kColumns;
  const int first_row = p.by_segments.split(index) * p.segment_rows;
  const int end_row = min(first_row + p.segment_rows, t.row.count);
  const int image = index;

  const auto [first_step, end_step] = find_steps<kStride, kSums>(t, first_row, end_row);
  int step = first_step;
  int y = step * kStride + t.row.offset0;
  const int x = column * kStride + t.column.offset0;
  const int source_end = find_source_end<kStride, kTaps>(t, end_row);
  int limits[kPixels];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const bool inside = static_cast<unsigned>(x + i) < static_cast<unsigned>(t.source_width);
    limits[i] = inside ? source_end : 0;
  }

  const T* source = static_cast<const T*>(t.source) + image * t.source_n + y * t.source_h +
                    x * t.source_w + channel;
  const auto load_step = [&](Row(&rows)[kStride]) {
#pragma unroll
    for (int c = 0; c < kStride; ++c) {
      rows[c].load(source, t.source_w, y, limits);
      source += t.source_h;
      ++y;
    }
  };
  Row rows[kAhead][kStride];
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) load_step(rows[ahead]);

  float weight[kTaps][kTaps][kDepthwiseVector];
  load_weights<T>(p, channel, weight);
  float bias[kDepthwiseVector] = {};
  if (t.bias != nullptr) {
#pragma unroll
    for (int c = 0; c < kDepthwiseVector; ++c) {
      bias[c] = to_accumulate(static_cast<const T*>(t.bias)[channel + c]);
    }
  }
  float sum[kSums][kColumns][kDepthwiseVector];
  const auto start_row = [&](auto& row) {
#pragma unroll
    for (auto& of_column : row) {
#pragma unroll
      for (int c = 0; c < kDepthwiseVector; ++c) of_column[c] = bias[c];
    }
  };
#pragma unroll
  for (auto& row : sum) start_row(row);
  const auto move_up = [&] {
#pragma unroll
    for (int m = kSums - 1; m > 0; --m) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int c = 0; c < kDepthwiseVector; ++c) sum[m][i][c] = sum[m - 1][i][c];
      }
    }
  };

  int row = step - (kSums - 1);  // the output row that the step completes
  T* target = static_cast<T*>(t.target) + image * t.target_n + row * t.target_h +
              column * t.target_w + channel;
  const auto store = [&](const float (&sums)[kColumns][kDepthwiseVector]) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (row >= first_row && row < end_row && column + i < t.column.count) {
        store_vector(target + i * t.target_w, sums[i]);
      }
    }
    target += t.target_h;
    ++row;
  };
  do {  // there is at least one step
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (ahead > 0 && step >= end_step) break;
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        float window[kPixels][kDepthwiseVector];
        rows[ahead][c].widen_to(window);
#pragma unroll
        for (int m = kSums - 1; m >= 0; --m) {
          const int r = c + m * kStride;
          if (r >= kTaps) continue;
#pragma unroll
          for (int s = 0; s < kTaps; ++s) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
#pragma unroll
              for (int v = 0; v < kDepthwiseVector; ++v) {
                sum[m][i][v] += weight[r][s][v] * window[i * kStride + s][v];
              }
            }
          }
        }
      }
      load_step(rows[ahead]);
      store(sum[kSums - 1]);
      ++step;
      move_up();
      start_row(sum[0]);
    }
  } while (step < end_step);
  // Rows that no further source row adds to.
#pragma unroll
  for (int m = kSums - 1; m > 0; --m) store(sum[m]);
}

}  // namespace convx
