// Depthwise convolution with 3x3, 5x5 and 7x7 kernels in channels_last, with accumulators in
// registers: forward, and stride-1 input gradient. The counterpart of strip_kernel.cuh.
//
//     y[p][q][c] = bias[c] + sum over r, s of  x[row (p, r)][column (q, s)][c] * w[c][r][s]
//
//      columns  --->                    A thread computes a vector of channels in some neighbouring
//      +---+---+---+---+                output columns (depthwise_geometry.h). The neighbouring
//      | # | # | # | # |  source row    threads of its block compute the other channels of a chunk,
//      +---+---+---+---+                then further columns, segments of the rows, and images.
//      |   |   |   |   |  next row
//      +---+---+---+---+                Each source row is read once, adds to the accumulators of
//                                       all output rows that see it, and is dropped.
//
// Pixels beside a thread's columns come from L1, because its neighbours have just loaded them. A
// step is `stride` source rows and completes one output row. Rows of taps whose output row is not
// the thread's are skipped: at the borders of a small image that is a quarter of a 7x7 kernel.
//
// Shared memory: none for 3x3, whose threads keep their weights in registers. Larger kernels: the
// weights of the block's chunk, [tap][channel], float32; 13 KB for 7x7. They are loaded coalesced,
// once, and each is read once per source row, for all columns of the thread.
// Limit: memory for 3x3; multiply-adds from about 5x5 on in 16 bits
// (docs/engines/cuda_depthwise.md). Grid: chunks of channels fastest, then the items (columns,
// segments, images) of a block.
#pragma once

#include "engines/cuda/depthwise/depthwise_geometry.h"
#include "engines/cuda/depthwise/element_vector.cuh"
#include "engines/cuda/depthwise/strip_row.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

// The pixels of one source row that a thread's outputs see.
template <typename T, int kPixels, int kChannels>
struct PixelRow {
  ElementVector<T, kChannels> pixels[kPixels];

  // `at` is the first pixel in row y. Pixel i is loaded only in rows 0 to limits[i] - 1; it is zero
  // elsewhere.
  __device__ __forceinline__ void load(const T* at, int64_t pixel_step, int y,
                                       const int (&limits)[kPixels]) {
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const bool valid = static_cast<unsigned>(y) < static_cast<unsigned>(limits[i]);
      pixels[i].load(at + i * pixel_step, valid);
    }
  }

  __device__ __forceinline__ void widen_to(float (&window)[kPixels][kChannels]) const {
#pragma unroll
    for (int i = 0; i < kPixels; ++i) pixels[i].widen_to(window[i]);
  }
};

// Copies the weights of the block's channels to shared memory, [tap][channel]. Neighbouring threads
// load neighbouring taps of a channel, which are usually contiguous, and store them a pitch apart.
// kDense: the weights are contiguous, [channel][row][column], so that 32-bit arithmetic locates
// them. The 64-bit products of other strides take more time than the loads of a small launch.
template <typename T, int kTaps, int kPitch, bool kDense>
__device__ __forceinline__ void copy_strip_weights(const DepthwiseTensors& t, int first_channel,
                                                   int channels, float* weights) {
  constexpr int kAllTaps = kTaps * kTaps;
  constexpr int kBatch = 8;  // loads in flight
  const int count = min(channels, t.channels - first_channel) * kAllTaps;
  const T* const from = static_cast<const T*>(t.weight) + first_channel * t.weight_k;
  const auto locate = [&](int index) {
    const int channel = index / kAllTaps, tap = index % kAllTaps;
    const int r = tap / kTaps, s = tap % kTaps;
    if constexpr (kDense) {
      return channel * kAllTaps + (t.row.tap0 + r * t.row.tap_step) * kTaps + t.column.tap0 +
             s * t.column.tap_step;
    } else {
      return t.locate_weight(channel, r, s);
    }
  };
  for (int first = threadIdx.x; first < count; first += kBatch * kDepthwiseThreads) {
    uint32_t words[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kDepthwiseThreads;
      words[i] = load_single(from + locate(index), index < count);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int index = first + i * kDepthwiseThreads;
      const int channel = index / kAllTaps, tap = index % kAllTaps;
      float value[1];
      widen_word<1>(value, 0, words[i], T{});
      if (index < count) weights[tap * kPitch + channel] = value[0];
    }
  }
}

template <typename T, int kTaps, int kPitch>
__device__ __forceinline__ void stage_strip_weights(const DepthwiseTensors& t, int first_channel,
                                                    int channels, float* weights) {
  if (t.weight_k == kTaps * kTaps && t.weight_r == kTaps && t.weight_s == 1) {
    copy_strip_weights<T, kTaps, kPitch, true>(t, first_channel, channels, weights);
  } else {
    copy_strip_weights<T, kTaps, kPitch, false>(t, first_channel, channels, weights);
  }
}

// Loads all weights of a thread's channels into registers.
template <typename T, int kTaps, int kChannels>
__device__ __forceinline__ void load_strip_weights(const PixelStripParams& p, int channel,
                                                   float (&weights)[kTaps * kTaps][kChannels]) {
  constexpr int kAllTaps = kTaps * kTaps;
  const T* const from = static_cast<const T*>(p.t.weight);
  if (p.dense_weights) {
    // Weights of neighbouring threads are far apart. Vector loads touch far fewer sectors.
    ElementVector<T, kChannels> vectors[kAllTaps];
#pragma unroll
    for (int i = 0; i < kAllTaps; ++i) {
      vectors[i].load(from + channel * kAllTaps + i * kChannels, true);
    }
    float flat[kAllTaps][kChannels];  // elements in [channel][tap] order
#pragma unroll
    for (int i = 0; i < kAllTaps; ++i) vectors[i].widen_to(flat[i]);
#pragma unroll
    for (int i = 0; i < kAllTaps * kChannels; ++i) {
      weights[i % kAllTaps][i / kAllTaps] = flat[i / kChannels][i % kChannels];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kAllTaps * kChannels; ++i) {
      const int c = i % kChannels, tap = i / kChannels;
      weights[tap][c] =
          to_accumulate(__ldg(from + p.t.locate_weight(channel + c, tap / kTaps, tap % kTaps)));
    }
  }
}

template <typename T, int kTaps, int kStride>
__global__ void __launch_bounds__(kDepthwiseThreads, pixel_strip_blocks(kTaps))
    pixel_strip_kernel(const __grid_constant__ PixelStripParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  constexpr int kChannels = pixel_strip_channels(kTaps);
  constexpr int kColumns = pixel_strip_columns(kTaps, kStride);
  constexpr int kPixels = (kColumns - 1) * kStride + kTaps;
  constexpr int kAhead = pixel_strip_steps_ahead(kTaps, kStride, sizeof(T));
  constexpr int kPitch = pixel_strip_weight_pitch(kTaps);
  constexpr bool kKeepsWeights = keeps_strip_weights(kTaps);
  // Output rows that a step adds to: sum[m] belongs to the m-th row before the newest.
  constexpr int kOpenRows = (kTaps + kStride - 1) / kStride;
  using Row = PixelRow<T, kPixels, kChannels>;

  const DepthwiseTensors& t = p.t;
  int index = blockIdx.x;
  const int first_channel = p.by_chunks.split(index) * p.chunk;
  int lane = threadIdx.x;
  const int place = p.by_vectors.split(lane) * kChannels;  // within the chunk
  const int channel = first_channel + place;
  index = index * p.block_items + lane;
  const bool has_work = lane < p.block_items && index < p.items && channel < t.channels;
  const int column = p.by_columns.split(index) * kColumns;
  const int first_row = p.by_segments.split(index) * p.segment_rows;
  const int end_row = min(first_row + p.segment_rows, t.row.count);
  const int image = index;

  const auto [first_step, end_step] = find_steps<kStride, kOpenRows>(t, first_row, end_row);
  int step = first_step;
  int y = step * kStride + t.row.offset0;
  const int x = column * kStride + t.column.offset0;
  const int source_end = find_source_end<kStride, kTaps>(t, end_row);
  int limits[kPixels];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const bool inside = static_cast<unsigned>(x + i) < static_cast<unsigned>(t.source_width);
    limits[i] = inside && has_work ? source_end : 0;
  }

  const T* source = static_cast<const T*>(t.source) + image * t.source_n + y * t.source_h +
                    x * t.source_w + channel;
  const auto load_row = [&](Row& row) {
    row.load(source, t.source_w, y, limits);
    source += t.source_h;
    ++y;
  };
  Row rows[kAhead][kStride];
#pragma unroll
  for (auto& of_step : rows) {
#pragma unroll
    for (Row& row : of_step) load_row(row);
  }

  float kept[kKeepsWeights ? kTaps * kTaps : 1][kChannels];
  float* const staged = reinterpret_cast<float*>(shared_bytes);
  if constexpr (!kKeepsWeights) {
    stage_strip_weights<T, kTaps, kPitch>(t, first_channel, p.chunk, staged);
    __syncthreads();
  }
  if (!has_work) return;
  if constexpr (kKeepsWeights) load_strip_weights<T, kTaps>(p, channel, kept);

  float bias[kChannels] = {};
  if (t.bias != nullptr) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      bias[c] = to_accumulate(static_cast<const T*>(t.bias)[channel + c]);
    }
  }
  float sum[kOpenRows][kColumns][kChannels];
  const auto start_row = [&](auto& row) {
#pragma unroll
    for (auto& of_column : row) copy_values(of_column, bias);
  };
#pragma unroll
  for (auto& row : sum) start_row(row);

  int row = step - (kOpenRows - 1);  // the output row that the step completes
  T* target = static_cast<T*>(t.target) + image * t.target_n + row * t.target_h +
              column * t.target_w + channel;
  const auto is_own = [&](int output_row) {
    return output_row >= first_row && output_row < end_row;
  };
  const auto store = [&](const float (&sums)[kColumns][kChannels]) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (!is_own(row) || column + i >= t.column.count) continue;
      T* const to = target + i * t.target_w;
      float values[kChannels];
      copy_values(values, sums[i]);
      all_at_least(values, t.lowest);
      store_elements(to, values);
    }
    target += t.target_h;
    ++row;
  };
  // Adds row c of a step to the outputs that see it.
  const auto multiply = [&](const float (&window)[kPixels][kChannels], int c) {
#pragma unroll
    for (int m = kOpenRows - 1; m >= 0; --m) {
      const int r = c + m * kStride;
      if (r >= kTaps) continue;
      if (!kKeepsWeights && !is_own(step - m)) continue;
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        float weight[kChannels];
        if constexpr (kKeepsWeights) {
          copy_values(weight, kept[r * kTaps + s]);
        } else {
          load_elements(weight, staged + (r * kTaps + s) * kPitch + place);
        }
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
#pragma unroll
          for (int v = 0; v < kChannels; ++v) {
            sum[m][i][v] += weight[v] * window[i * kStride + s][v];
          }
        }
      }
    }
  };
  do {  // there is at least one step
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (ahead > 0 && step >= end_step) break;
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        float window[kPixels][kChannels];
        rows[ahead][c].widen_to(window);
        multiply(window, c);
        load_row(rows[ahead][c]);
      }
      store(sum[kOpenRows - 1]);
      ++step;
      shift_rows(sum);
      start_row(sum[0]);
    }
  } while (step < end_step);
  // Rows that no further source row adds to.
#pragma unroll
  for (int m = kOpenRows - 1; m > 0; --m) store(sum[m]);
}

}  // namespace convx
