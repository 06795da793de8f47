// Adds the partial sums of all split-K slices in a fixed order, and writes dW, where channels are
// adjacent in dW: 1x1 layers, and channels_last.
//
//                   shares of slices
//                  0    1    2   ...
//                +----+----+----+----+
//   vectors of   | a  |    |    |    |   a thread adds four neighbouring columns of every
//   four columns | thread  |    |    |   shares-th slice; then one thread adds the shares, in
//                +----+----+----+----+   their order, and writes four elements
//
// Partial sums of a row are in the order of dW, so that nothing but shares goes through shared
// memory. Vectors of a block are neighbours; shares are as many as keep the GPU busy.
//
// Shared memory: shares 4 KiB | where each tap's accumulators and elements are, 8 bytes per tap.
// It is little, so that blocks are resident before the kernel that they wait for has ended.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "device/vectors.cuh"
#include "engines/cuda/weight_grad/reduce_unit.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "kernels/run_flag.cuh"

namespace convx {

inline constexpr int kMaxShares = 32;
// Threads that keep an H200 busy: a thousand for each of 128 multiprocessors.
inline constexpr int64_t kBusyThreads = 1 << 17;
inline constexpr int64_t kReduceRowsBlocks = 1056;  // eight for each of 132 multiprocessors

struct ReduceRowsShape : ReduceTiles {
  int vectors;  // filters * taps * tiles, times the vectors of a tile
  int share_bits;
  FastDivmod by_taps;
  bool stores_vectors;  // every vector is four aligned elements of dW
};

// Whether the reduction of this file can write dW.
inline bool can_reduce_rows(const WgradGeometry& g) {
  if (!g.has_adjacent_channels()) return false;
  const ReduceTiles tiles = make_reduce_tiles(g);
  return (int64_t{tiles.units} * tiles.taps) << tiles.vector_bits < int64_t{1} << 30;
}

// Four neighbouring columns of a filter's tap.
struct ReduceVector {
  int tap;
  ReduceUnit unit;
  int column;  // of the tile, the first
  bool is_empty;

  // index: [filter][tap][tile][vector]
  __device__ __forceinline__ ReduceVector(const WgradGeometry& g, const ReduceRowsShape& shape,
                                          int index)
      : tap(0), unit(g, shape, find_unit(shape, index, tap)) {
    const int vector = index & ((1 << shape.vector_bits) - 1);
    column = (unit.begin / 4 + vector) * 4;
    is_empty = column >= unit.end;
  }

  // The index of the unit. Sets the tap.
  __device__ __forceinline__ static int find_unit(const ReduceRowsShape& shape, int index,
                                                  int& tap) {
    int filter = index >> shape.vector_bits;
    const int tile = shape.by_tiles.split(filter);
    tap = shape.by_taps.split(filter);
    return filter * static_cast<int>(shape.by_tiles.divisor) + tile;
  }
};

template <OperandForm kForm>
__global__ void __launch_bounds__(kReduceThreads)
    wgrad_reduce_rows_kernel(const __grid_constant__ WgradGeometry g,
                             const __grid_constant__ WgradCall call,
                             const __grid_constant__ ReduceRowsShape shape) {
  using T = element_t<kForm>;
  extern __shared__ __align__(16) char memory[];
  auto* const sums = reinterpret_cast<float4*>(memory);  // [share][vector]
  auto* const places = reinterpret_cast<int*>(sums + kReduceThreads);
  int* const offsets = places + shape.taps;
  list_taps(g, places, offsets);
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(call)) return;
  __syncthreads();
  const SumFinisher<kForm> finisher(call);
  const int thread = static_cast<int>(threadIdx.x);
  const int shares = 1 << shape.share_bits, block_vectors = kReduceThreads >> shape.share_bits;
  const int share = thread / block_vectors, own = thread % block_vectors;
  T* const dw = static_cast<T*>(call.w);

  for (int first = blockIdx.x * block_vectors; first < shape.vectors;
       first += gridDim.x * block_vectors) {
    const ReduceVector vector(g, shape, min(first + own, shape.vectors - 1));
    const bool is_own = first + own < shape.vectors && !vector.is_empty;
    float4 sum{0, 0, 0, 0};
    if (is_own) {
      sum = add_slices(g, call.partials + vector.unit.partial + places[vector.tap] + vector.column,
                       share, shares);
    }
    if (shares > 1) {
      sums[thread] = sum;
      __syncthreads();
    }
    bool is_wrong = false;
    if (is_own && share == 0) {
#pragma unroll 4
      for (int j = 1; j < shares; ++j) add_vector(sum, sums[j * block_vectors + own]);
      T* const to = dw + vector.unit.find_offset(g, vector.column) + offsets[vector.tap];
      const float values[4] = {finisher.unscale(sum.x, is_wrong), finisher.unscale(sum.y, is_wrong),
                               finisher.unscale(sum.z, is_wrong),
                               finisher.unscale(sum.w, is_wrong)};
      if (shape.stores_vectors) {
        store_vector(to, values);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = vector.column + i;
          if (column >= vector.unit.begin && column < vector.unit.end)
            to[i] = round_to<T>(values[i]);
        }
      }
    }
    // Until then the shares are read.
    if (!__syncthreads_or(is_wrong)) continue;

    const int end = min(first + block_vectors, shape.vectors);
    for (int index = first; index < end; ++index) {
      const ReduceVector wrong(g, shape, index);
      const int end_column = min(wrong.column + 4, wrong.unit.end);
      for (int column = max(wrong.column, wrong.unit.begin); column < end_column; ++column) {
        const WgradElement element(g, wrong.unit.filter, wrong.unit.first_column + column,
                                   wrong.tap);
        if (fabsf(to_accumulate(dw[element.offset(g)])) <= kLargestFinite) continue;
        element.recompute<T>(g, call, reinterpret_cast<double*>(sums), kReduceThreads);
      }
    }
  }
}

template <OperandForm kForm>
void launch_reduce_rows(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  ReduceRowsShape shape{make_reduce_tiles(g)};
  shape.vectors = (shape.units * shape.taps) << shape.vector_bits;
  shape.by_taps = FastDivmod(shape.taps);
  while ((2 << shape.share_bits) <= std::min(g.slices, kMaxShares) &&
         int64_t{shape.vectors} << shape.share_bits < kBusyThreads) {
    ++shape.share_bits;
  }
  const auto are_vectors = [](int64_t stride) { return stride % 4 == 0; };
  shape.stores_vectors =
      reinterpret_cast<uintptr_t>(call.w) % (4 * sizeof(element_t<kForm>)) == 0 &&
      g.group_channels % 4 == 0 && are_vectors(g.w_strides.n) &&
      (g.kernel_rows == 1 || are_vectors(g.w_strides.h)) &&
      (g.kernel_columns == 1 || are_vectors(g.w_strides.w));
  const int block_vectors = kReduceThreads >> shape.share_bits;
  const int64_t blocks = (int64_t{shape.vectors} + block_vectors - 1) / block_vectors;
  const dim3 grid(static_cast<unsigned>(std::min(blocks, kReduceRowsBlocks)));
  const size_t shared_bytes = kReduceThreads * sizeof(float4) + 8 * static_cast<size_t>(shape.taps);
  launch_early<wgrad_reduce_rows_kernel<kForm>>(site, grid, kReduceThreads, shared_bytes, g, call,
                                                shape);
}

}  // namespace convx
