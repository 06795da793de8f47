// Depthwise weight gradient of 5x5 and 7x7 kernels in channels_last, without copies to shared
// memory:
//
//     dW[c][r][s] = sum over n, p, q of  dY[n][p][q][c] * X[n][p*st + r - pad][q*st + s - pad][c]
//
// A thread has two channels and one row r of taps, hence only kTaps x 2 accumulators. An item is
// kColumns neighbouring outputs of one row of one image:
//
//      X   | # | # | # | # | # | # | # |    kPixels pixels of row p*st + r - pad
//      dY          | # | # | # |            kColumns pixels of row p
//
// A thread skips items whose row of X is padding: a quarter of them for 7x7 taps on a 7x7 image.
// Pixels come from L1, where the threads of the other rows of taps have just loaded them. The next
// item is loaded while the current one is multiplied.
//
// Threads of a block: vectors of two channels fastest, then rows of taps, then slices. Slice i of n
// takes items i, i + n, ... of the block's range, so that the slices of a block read neighbouring
// rows. At the end the slices are added in order through shared memory. If one block has all items
// of its channels, it writes dW itself; otherwise blocks write partial sums, which
// weight_grad_sums.cu adds. The order of all additions is fixed.
//
// Shared memory: the accumulators, [tap column][channel of a vector][thread]; 28 KB for 7x7.
// Grid: chunks of channels fastest, then splits.
#pragma once

#include "engines/cuda/depthwise/element_vector.cuh"
#include "engines/cuda/depthwise/weight_grad_geometry.h"

namespace convx {

// The pixels that a thread multiplies for one item, as they are in memory.
template <typename T, int kTaps, int kStride>
struct RowGradItem {
  static constexpr int kColumns = row_grad_columns(kStride);
  static constexpr int kPixels = (kColumns - 1) * kStride + kTaps;
  ElementVector<T, kRowGradChannels> grads[kColumns];
  ElementVector<T, kRowGradChannels> pixels[kPixels];
  int columns;  // outputs; 0: the thread skips the item

  __device__ __forceinline__ void load(const RowWeightGradParams& p, int item, int end, int r,
                                       int channel, bool has_work) {
    const DepthwiseTensors& t = p.t;
    int image = item;
    const int row = p.by_rows.split(image);
    const int column = p.by_tiles.split(image) * kColumns;
    const int y = row * kStride + r + t.row.offset0;
    const int x = column * kStride + t.column.offset0;
    const bool wanted =
        has_work && item < end && static_cast<unsigned>(y) < static_cast<unsigned>(t.source_height);
    columns = 0;
    if (!wanted) return;
    columns = min(kColumns, t.column.count - column);
    const T* const target = static_cast<const T*>(t.target) + image * t.target_n +
                            row * t.target_h + column * t.target_w + channel;
    const T* const source = static_cast<const T*>(t.source) + image * t.source_n + y * t.source_h +
                            x * t.source_w + channel;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) grads[i].load(target + i * t.target_w, i < columns);
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const bool inside = static_cast<unsigned>(x + i) < static_cast<unsigned>(t.source_width);
      pixels[i].load(source + i * t.source_w, inside);
    }
  }

  // Adds the item's products. Outputs beside the image must not be multiplied even by zero, because
  // x may be infinite.
  __device__ __forceinline__ void multiply(float (&sum)[kTaps][kRowGradChannels]) const {
    if (columns == 0) return;
    float window[kPixels][kRowGradChannels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) pixels[i].widen_to(window[i]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i >= columns) continue;
      float grad[kRowGradChannels];
      grads[i].widen_to(grad);
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
#pragma unroll
        for (int k = 0; k < kRowGradChannels; ++k) {
          sum[s][k] += grad[k] * window[i * kStride + s][k];
        }
      }
    }
  }
};

// Adds the slices of a block and writes the result, or the block's partial sums.
template <typename T, int kTaps>
__device__ __forceinline__ void store_row_sums(const RowWeightGradParams& p,
                                               const float (&sum)[kTaps][kRowGradChannels],
                                               int first_channel, int split, float* sums) {
  const int threads = static_cast<int>(blockDim.x);
#pragma unroll
  for (int s = 0; s < kTaps; ++s) {
#pragma unroll
    for (int k = 0; k < kRowGradChannels; ++k) {
      sums[(s * kRowGradChannels + k) * threads + threadIdx.x] = sum[s][k];
    }
  }
  __syncthreads();
  const DepthwiseTensors& t = p.t;
  for (int i = threadIdx.x; i < kTaps * kRowGradChannels * p.slice_threads; i += threads) {
    int slot = i;
    const int thread = p.by_slice_threads.split(slot);  // of slice 0
    int r = thread;
    const int place = p.by_vectors.split(r) * kRowGradChannels + slot % kRowGradChannels;
    const int s = slot / kRowGradChannels;
    const int filter = first_channel + place;
    if (filter >= t.channels) continue;
    float total = 0;
    for (int slice = 0; slice < p.slices; ++slice) {
      total += sums[slot * threads + slice * p.slice_threads + thread];
    }
    if (p.splits == 1) {
      static_cast<T*>(p.result)[t.locate_weight(filter, r, s)] = round_to<T>(total);
    } else {
      p.partials[split * p.partial_stride + (filter * kTaps + r) * kTaps + s] = total;
    }
  }
}

template <typename T, int kTaps, int kStride>
__global__ void __launch_bounds__(kRowGradThreads)
    row_weight_grad_kernel(const __grid_constant__ RowWeightGradParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  int split = blockIdx.x;
  const int first_channel = p.by_chunks.split(split) * p.chunk;
  int slice = threadIdx.x;
  const int channel = first_channel + p.by_vectors.split(slice) * kRowGradChannels;
  const int r = slice % kTaps;
  slice /= kTaps;
  const bool has_work = channel < p.t.channels && slice < p.slices;

  RowGradItem<T, kTaps, kStride> items[2];
  float sum[kTaps][kRowGradChannels] = {};
  const int first = split * p.split_items;
  const int end = min(first + p.split_items, p.items);
  int next = first + slice;
  const auto load_next = [&](auto& item) {
    item.load(p, next, end, r, channel, has_work);
    next += p.slices;
  };
  load_next(items[0]);
#pragma unroll 1
  for (int done = first; done < end; done += 2 * p.slices) {
    load_next(items[1]);
    items[0].multiply(sum);
    load_next(items[0]);
    items[1].multiply(sum);
  }
  store_row_sums<T, kTaps>(p, sum, first_channel, split, reinterpret_cast<float*>(shared_bytes));
}

}  // namespace convx
