// Weight gradient for groups with few filters, such as depthwise layers (formula in
// weight_grad_common.cuh).
//
// Tile: a block computes kFilters x kColumns of the gradient over its split-K slice of the pixels.
//
// Threads divide the pixels, not the outputs. Each keeps all accumulators of the block in registers
// and reads y and x directly from global memory: neighbouring threads read neighbouring pixels, and
// the taps of a pixel find most of their values in L1. At the end the accumulators are reduced over
// the threads, by shuffles and then warp by warp, always in the same order.
//
// Shared memory: kColumns column offsets of 16 bytes, 8 warps x kFilters x kColumns partial sums.
// Grid: tile fastest, then split.
#pragma once

#include "engines/cuda/direct/weight_grad_common.cuh"

namespace convx {

constexpr int kNarrowThreads = 256;

template <typename T, int kFilters, int kColumns>
__device__ __forceinline__ void add_pixel(const WeightGradParams& p, const WeightGradTile& tile,
                                          const ColumnOffset* table, const PixelWalk& at,
                                          accumulate_t<T> (&sum)[kFilters][kColumns]) {
  using Acc = accumulate_t<T>;
  // y: [n][group, k][p][q], x: [n][group, c][h][w], any strides
  const T* y = static_cast<const T*>(p.y) +
               (int64_t{tile.group} * p.filters + tile.filter) * p.y_strides.c + locate_y(p, at);
  const int h = at.p * p.stride_h - p.pad_top;
  const int w = at.q * p.stride_w - p.pad_left;
  const T* x = static_cast<const T*>(p.x) + int64_t{tile.group} * p.channels * p.x_strides.c +
               at.n * p.x_strides.n + h * p.x_strides.h + w * p.x_strides.w;
  Acc values[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const ColumnOffset offset = table[c];
    const bool valid = static_cast<unsigned>(h + offset.h) < static_cast<unsigned>(p.H) &&
                       static_cast<unsigned>(w + offset.w) < static_cast<unsigned>(p.W);
    values[c] = valid ? to_accumulate(x[offset.elements]) : Acc{0};
  }
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    if (kFilters > 1 && tile.filter + f >= p.filters) break;
    const Acc gradient = to_accumulate(y[f * p.y_strides.c]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[f][c] += gradient * values[c];
  }
}

// Three blocks per multiprocessor in float32: enough loads in flight, and no spills.
template <typename T, int kFilters, int kColumns>
__global__ void __launch_bounds__(kNarrowThreads, sizeof(T) == 8 ? 1 : 3)
    weight_grad_narrow_kernel(const __grid_constant__ WeightGradParams p) {
  using Acc = accumulate_t<T>;
  constexpr int kSums = kFilters * kColumns;
  constexpr int kWarps = kNarrowThreads / 32;
  __shared__ ColumnOffset table[kColumns];
  __shared__ Acc warp_sums[kWarps][kSums];
  const WeightGradTile tile = locate_tile(p, kFilters, kColumns);
  if (threadIdx.x < kColumns) table[threadIdx.x] = locate_column(p, tile.column + threadIdx.x);
  __syncthreads();

  const int64_t begin = tile.split * p.pixels_per_split;
  const int64_t end = min(begin + p.pixels_per_split, p.pixels);
  Acc sum[kFilters][kColumns] = {};
  PixelWalk at(p, begin + threadIdx.x);
  for (int64_t pixel = begin + threadIdx.x; pixel < end; pixel += kNarrowThreads) {
    // Keeps the table in shared memory. Hoisted out of the loop it would take 64 registers.
    asm volatile("" ::: "memory");
    add_pixel<T, kFilters, kColumns>(p, tile, table, at, sum);
    at.advance(p, kNarrowThreads);
  }

#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    Acc value = sum[i / kColumns][i % kColumns];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][i] = value;
  }
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  Acc total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += warp_sums[warp][threadIdx.x];
  if (p.direct) {
    write_weight<T>(p, tile.group, tile.filter + threadIdx.x / kColumns,
                    tile.column + threadIdx.x % kColumns, total);
  } else {
    static_cast<Acc*>(
        p.partial)[(int64_t{tile.split} * p.tiles + tile.index) * kSums + threadIdx.x] = total;
  }
}

}  // namespace convx
