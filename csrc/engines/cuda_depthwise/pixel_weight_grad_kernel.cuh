// Depthwise weight gradient over pixels whose channels are neighbours in memory (channels_last).
//
// As strip_weight_grad_kernel.cuh: a thread walks down a strip of columns, and each source row is
// multiplied with the rows of the output gradient that see it, the last few of which stay in
// registers. Here it does so for two channels, and for a part of the taps (a group): up to 3 kernel
// rows of kTaps columns, whose sums fit in registers.
//
//      columns  --->                 a block: some channels, and for them several groups, which
//      find
//      +---+---+---+---+             in L1 what others have read, and several strips at a time
//      | # | # | # | # |  source row
//      +---+---+---+---+
//      |   |   |   |   |  next row
//
// Sums of a block's strips are added up, then those of all blocks (sum_partials.cuh), in a fixed
// order. Grid: channels fastest, then blocks of groups, then parts of the strips of all images.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// Two channels of some neighbouring pixels.
template <typename T, int kPixels>
struct ChannelPairs {
  static constexpr int kWords = 2 * sizeof(T) / 4;
  uint32_t words[kPixels][kWords];

  // at: of the first pixel. is_inside: of pixels. channels: how many of the two there are.
  template <typename IsInside>
  __device__ __forceinline__ void load(const T* at, int64_t pixel_step, bool paired, int channels,
                                       const IsInside& is_inside) {
#pragma unroll
    for (int i = 0; i < kPixels; ++i, at += pixel_step) {
      const bool valid = is_inside(i);
      if (paired) {
        load_words<kWords>(words[i], at, valid);
      } else {
        const uint32_t first = load_single(at, valid);
        const uint32_t second = load_single(at + 1, valid && channels == 2);
        words[i][kWords - 1] = kWords == 2 ? second : first | second << 16;
        if constexpr (kWords == 2) words[i][0] = first;
      }
    }
  }
  __device__ __forceinline__ void widen_to(float (&pairs)[kPixels][2]) const {
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) widen(pairs[i], w, words[i][w], T{});
    }
  }
};

template <typename T, int kTaps, int kStride>
class PixelGradStrip {
  static constexpr int kColumns = kPixelGradColumns;
  static constexpr int kPixels = (kColumns - 1) * kStride + kTaps;
  static constexpr int kRows = (kPixelGradRows + kStride - 1) / kStride;  // that see a step
  using Window = float[kPixels][2];
  using Grads = float[kColumns][2];

 public:
  using Sums = float[kPixelGradRows][kTaps][2];

  // first_row_tap, first_tap: of the group; row_taps: how many rows it has.
  __device__ __forceinline__ PixelGradStrip(const PixelWeightGradParams& p, int channel,
                                            int first_row_tap, int row_taps, int first_tap)
      : p_(p),
        t_(p.t),
        channel_(channel),
        channels_(min(p.t.channels - channel, 2)),
        row_taps_(row_taps),
        offset_h_(p.t.row.offset0 + first_row_tap),
        offset_w_(p.t.column.offset0 + first_tap) {}

  // Adds all products of a strip's rows.
  __device__ __forceinline__ void add(int image, int column, int first_row, int end_row,
                                      Sums& sum) const {
    const int outputs = t_.column.count - column;
    const int x = column * kStride + offset_w_;
    int y = first_row * kStride + offset_h_;
    int next_row = first_row;
    const T* source = static_cast<const T*>(t_.source) + image * t_.source_n + y * t_.source_h +
                      x * t_.source_w + channel_;
    const T* target = static_cast<const T*>(t_.target) + image * t_.target_n +
                      first_row * t_.target_h + column * t_.target_w + channel_;
    ChannelPairs<T, kPixels> rows[kStride];
    ChannelPairs<T, kColumns> grad_row;
    const auto load_step = [&] {
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        const bool in_rows = static_cast<unsigned>(y) < static_cast<unsigned>(t_.source_height);
        rows[c].load(source, t_.source_w, p_.paired, channels_, [&](int i) {
          return in_rows && static_cast<unsigned>(x + i) < static_cast<unsigned>(t_.source_width);
        });
        source += t_.source_h;
        ++y;
      }
      const bool in_rows = next_row < end_row;
      grad_row.load(target, t_.target_w, p_.paired, channels_,
                    [&](int i) { return in_rows && i < outputs; });
      target += t_.target_h;
      ++next_row;
    };
    load_step();
    Grads grad[kRows] = {};
#pragma unroll 1
    for (int step = first_row; step < end_row + kRows - 1; ++step) {
#pragma unroll
      for (int m = kRows - 1; m > 0; --m) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          grad[m][i][0] = grad[m - 1][i][0], grad[m][i][1] = grad[m - 1][i][1];
        }
      }
      grad_row.widen_to(grad[0]);
      Window window[kStride];
#pragma unroll
      for (int c = 0; c < kStride; ++c) rows[c].widen_to(window[c]);
      load_step();  // the next one's
      // Zeros must not be multiplied in place of others: a source may be infinite.
      multiply(window, grad, step - (end_row - 1), step - first_row, outputs, sum);
    }
  }

 private:
  // grad[m] is the row m before the newest; those of the strip are from first to last.
  __device__ __forceinline__ void multiply(const Window (&window)[kStride],
                                           const Grads (&grad)[kRows], int first, int last,
                                           int outputs, Sums& sum) const {
#pragma unroll
    for (int row_tap = 0; row_tap < kPixelGradRows; ++row_tap) {
      const int m = row_tap / kStride, c = row_tap % kStride;
      if (row_tap >= row_taps_ || m < first || m > last) continue;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (i >= outputs) continue;
#pragma unroll
        for (int s = 0; s < kTaps; ++s) {
          sum[row_tap][s][0] += grad[m][i][0] * window[c][i * kStride + s][0];
          sum[row_tap][s][1] += grad[m][i][1] * window[c][i * kStride + s][1];
        }
      }
    }
  }

  const PixelWeightGradParams& p_;
  const DepthwiseTensors& t_;
  const int channel_, channels_;
  const int row_taps_;
  const int offset_h_, offset_w_;
};

template <typename T, int kTaps, int kStride>
__global__ void __launch_bounds__(kPixelGradThreads, pixel_grad_blocks(sizeof(T), kTaps, kStride))
    pixel_weight_grad_kernel(const __grid_constant__ PixelWeightGradParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  using Strip = PixelGradStrip<T, kTaps, kStride>;
  const DepthwiseTensors& t = p.t;
  int part = blockIdx.x;
  const int chunk = p.by_chunks.split(part);
  int group = p.by_group_blocks.split(part) * p.block_groups;
  // Threads: channels fastest, then strips, then groups.
  int rest = threadIdx.x;
  const int channel = 2 * (chunk * p.pairs + p.by_pairs.split(rest));
  const int item_lane = p.by_item_lanes.split(rest);
  group += rest;
  const int first_tap = p.by_column_groups.split(group) * p.group_columns;
  const int first_row_tap = group * p.group_rows;
  const int row_taps = min(p.group_rows, t.row.taps - first_row_tap);
  const bool some = channel < t.channels && row_taps > 0;

  typename Strip::Sums sum = {};
  if (some) {
    const Strip strip(p, channel, first_row_tap, row_taps, first_tap);
    const int end_item = min((part + 1) * p.items_per_part, p.items);
#pragma unroll 1
    for (int item = part * p.items_per_part + item_lane; item < end_item; item += p.item_lanes) {
      int image = item;
      const int column = p.by_strips.split(image) * kPixelGradColumns;
      const int first_row = p.by_segments.split(image) * p.segment_rows;
      strip.add(image, column, first_row, min(first_row + p.segment_rows, t.row.count), sum);
    }
  }

  // Row by row: sums [tap][channel of the pair][thread].
  float* const sums = reinterpret_cast<float*>(shared_bytes);
  const int last_tap = min(p.group_columns, t.column.taps - first_tap);
#pragma unroll
  for (int row = 0; row < kPixelGradRows; ++row) {
    __syncthreads();  // what is there has been read
#pragma unroll
    for (int i = 0; i < 2 * kTaps; ++i) {
      sums[i * blockDim.x + threadIdx.x] = sum[row][i / 2][i % 2];
    }
    __syncthreads();
    if (!some || item_lane > 0 || row >= row_taps) continue;
    for (int i = 0; i < 2 * last_tap; ++i) {
      const int of = channel + i % 2;
      if (of >= t.channels) continue;
      float total = 0;
      for (int lane = 0; lane < p.item_lanes; ++lane) {
        total += sums[i * blockDim.x + threadIdx.x + lane * p.pairs];
      }
      const int tap = (first_row_tap + row) * t.column.taps + first_tap + i / 2;
      p.partials[part * p.partial_stride + of * int64_t{p.taps} + tap] = total;
    }
  }
}

}  // namespace convx
