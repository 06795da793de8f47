// Partial sums of all split-K slices: where they are, and how a thread adds them.
#pragma once

#include <algorithm>

#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_tile.cuh"

namespace convx {

inline constexpr int kReduceThreads = 256;

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

}  // namespace convx
