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

#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "device/vectors.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "engines/cuda/weight_grad/wgrad_work.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

inline constexpr int kReduceThreads = 256;
inline constexpr int kMaxShares = 32;
// Threads that keep an H200 busy: a thousand for each of 128 multiprocessors.
inline constexpr int64_t kBusyThreads = 1 << 17;
inline constexpr int64_t kReduceRowsBlocks = 1056;  // eight for each of 132 multiprocessors

// Tiles of channels that a filter has partial sums in.
struct ReduceTiles {
  FastDivmod by_tiles;
  int units;        // filters times tiles
  int vector_bits;  // log2 of the vectors of four columns that a tap has in a unit, rounded up
  int taps;
};

inline ReduceTiles make_reduce_tiles(const WgradGeometry& g) {
  ReduceTiles shape{};
  // A group's channels may begin anywhere in a tile.
  const int tiles = g.group_filters == g.filters
                        ? (g.packed_channels + g.atom_channels - 1) / g.atom_channels
                        : (g.group_channels + g.atom_channels - 2) / g.atom_channels + 1;
  shape.by_tiles = FastDivmod(tiles);
  // Groups of other than multiples of four channels may begin within a vector.
  const int reach = g.group_channels + (g.group_channels % 4 == 0 ? 0 : 6);
  const int columns =
      g.group_filters == g.filters ? g.atom_channels : std::min(g.atom_channels, reach);
  while ((4 << shape.vector_bits) < columns) ++shape.vector_bits;
  shape.units = g.filters * tiles;
  shape.taps = g.folds_columns ? g.kernel_rows : g.kernel_rows * g.kernel_columns;
  return shape;
}

// For each tap: where its accumulators are, from those of the tile's first consumer on, and where
// its elements of dW are, from those of the first tap on.
__device__ __forceinline__ void list_taps(const WgradGeometry& g, int* places, int* offsets) {
  for (int block = 0; block < g.group_blocks; ++block) {
    const int first = g.block_groups[block], end = g.block_groups[block + 1];
    for (int index = first + static_cast<int>(threadIdx.x); index < end; index += blockDim.x) {
      const TapGroup& group = g.groups[index];
      const int consumer = block * g.consumers() + index - first;
      for (int atom = 0; atom < group.taps; ++atom) {
        const int r = group.r + atom * g.atom_r, s = group.s + atom * g.atom_s;
        const int tap = g.folds_columns ? r : r * g.kernel_columns + s;
        places[tap] = consumer * kTileFilters * g.columns + (atom << g.atom_bits);
        offsets[tap] = static_cast<int>(r * g.w_strides.h + s * g.w_strides.w);
      }
    }
  }
}

// One filter and one tile of channels, with all taps.
struct ReduceUnit {
  int filter, first_column;
  int begin, end;   // columns of the tile that belong to the filter's group
  int64_t partial;  // of its first tap and column, in a slice
  int64_t offset;   // of the first tap of column 0, in dW

  __device__ __forceinline__ ReduceUnit(const WgradGeometry& g, const ReduceTiles& tiles,
                                        int index) {
    filter = index;
    const int tile_of_filter = tiles.by_tiles.split(filter);
    const int group_begin = g.by_group_filters.divide(filter) * g.group_channels;
    const int group_end = g.folds_columns ? g.packed_channels : group_begin + g.group_channels;
    const int tile = (group_begin >> g.atom_bits) + tile_of_filter;
    first_column = tile << g.atom_bits;
    begin = max(group_begin - first_column, 0);
    end = min(group_end - first_column, g.atom_channels);  // not positive: the unit is empty

    int filter_block = filter / kTileFilters;
    const int row = filter - filter_block * kTileFilters;
    const int filter_tile = g.by_block_filter_tiles.split(filter_block);
    int channel_block = tile - find_first_tile(g, filter_block), sub_tile = 0;
    if (g.atom_axis == AtomAxis::kChannels)
      sub_tile = g.by_block_channel_tiles.split(channel_block);
    const int64_t consumer =
        int64_t{filter_block * g.channel_blocks + channel_block} * g.group_blocks * g.consumers() +
        filter_tile * g.block_tap_groups;
    partial = (consumer * kTileFilters + row) * g.columns + (sub_tile << g.atom_bits);
    offset = filter * g.w_strides.n - group_begin * g.w_strides.c;
  }

  // Where the first tap of a column of the tile is in dW.
  __device__ __forceinline__ int64_t find_offset(const WgradGeometry& g, int column) const {
    column += first_column;
    if (!g.folds_columns) return offset + column * g.w_strides.c;
    const int c = g.by_group_channels.split(column);  // leaves the kernel column
    return offset + c * g.w_strides.c + column * g.w_strides.w;
  }
};

__device__ __forceinline__ void add_vector(float4& sum, const float4& value) {
  sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
}

// Adds four neighbouring columns of every step-th slice from this one on, in that order. partials:
// those of the first slice. The loads of several slices overlap; those beyond the last are zeros.
__device__ __forceinline__ float4 add_slices(const WgradGeometry& g, const float* partials,
                                             int slice, int step) {
  constexpr int kTogether = 4;
  const int64_t stride = step * g.partial_values();
  const float* from = partials + slice * g.partial_values();
  float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll 1
  for (int first = slice + step; first < g.slices; first += kTogether * step) {
    float4 values[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      from += stride;
      values[j] = float4{0, 0, 0, 0};
      if (first + j * step < g.slices) values[j] = *reinterpret_cast<const float4*>(from);
    }
#pragma unroll
    for (const float4& value : values) add_vector(sum, value);
  }
  return sum;
}

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

template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    wgrad_reduce_rows_kernel(const __grid_constant__ WgradGeometry g,
                             const __grid_constant__ WgradCall call,
                             const __grid_constant__ ReduceRowsShape shape, OperandForm form) {
  extern __shared__ __align__(16) char memory[];
  auto* const sums = reinterpret_cast<float4*>(memory);  // [share][vector]
  auto* const places = reinterpret_cast<int*>(sums + kReduceThreads);
  int* const offsets = places + shape.taps;
  list_taps(g, places, offsets);
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(call)) return;
  __syncthreads();
  const PartialSumFinisher<T> finisher(call, form);
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
  const Grid grid(std::min(blocks, kReduceRowsBlocks));
  const size_t shared_bytes = kReduceThreads * sizeof(float4) + 8 * static_cast<size_t>(shape.taps);
  launch_early<wgrad_reduce_rows_kernel<element_t<kForm>>>(site, grid, kReduceThreads, shared_bytes,
                                                           g, call, shape, kForm);
}

}  // namespace convx
