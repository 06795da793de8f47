// Adds the partial sums of all split-K slices in a fixed order, and writes dW.
//
// A unit is one filter and one tile of channels, with all taps:
//
//              channels of a tile
//            +--------------------+
//      taps  | rows of partial    |   read row by row, as the MMA kernel wrote them,
//            | sums, per slice    |   written in dW's order, through shared memory
//            +--------------------+
//
// A unit is added by 1 to 8 warps of a block: warp i adds slices i, i + warps, ..., and their
// results are added in the order of warps. Taps go through shared memory in chunks of kReduceValues
// values.
//
// Shared memory: where each tap's accumulators and elements are, 8 KiB
//                | each warp's sums of a chunk, 8 * 4.25 KiB
//                | shares of elements that are computed again, 2 KiB.
//
// The number of instructions for an element limits the kernel: 2.4 million elements take 9 us more
// than a few thousand (H200, 2026-11-18).
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda_weight_grad/wgrad_element.cuh"
#include "engines/cuda_weight_grad/wgrad_forms.h"
#include "engines/cuda_weight_grad/wgrad_tile.cuh"
#include "engines/run_flag.cuh"

namespace convx {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceWarps = kReduceThreads / 32;
inline constexpr int kReduceValues = 1024;  // of a unit, at a time
// Rows of a chunk are one value longer than the tile has channels, so that neighbouring taps are in
// different banks.
inline constexpr int kReduceBuffer = kReduceValues + kReduceValues / 16;
inline constexpr int kReduceSharedBytes =
    kMaxWgradTaps * 8 + kReduceWarps * kReduceBuffer * 4 + kReduceThreads * 8;

// How the reduction is spread over blocks and warps.
struct ReduceShape {
  int units, unit_warps;  // unit_warps: that add one unit, a power of two up to 8
  FastDivmod by_tiles;    // units of a filter
  int vector_bits;  // log2 of the vectors of four columns that a tap has in a unit, rounded up
  int taps, chunk_taps;
  // A unit's elements lie side by side in dW, taps innermost, and a chunk has all of them.
  bool stores_by_tap;
  FastDivmod by_taps;
};

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

  __device__ __forceinline__ ReduceUnit(const WgradGeometry& g, const ReduceShape& shape,
                                        int index) {
    filter = index;
    const int tile_of_filter = shape.by_tiles.split(filter);
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

// Adds the unit's values of taps [first_tap, first_tap + taps), of every step-th slice. A lane adds
// four neighbouring columns. Columns of other groups, and atoms that no tap uses, have partial sums
// as well, which nobody needs; of a narrow group few columns are read.
__device__ __forceinline__ void add_slices(const WgradGeometry& g, const ReduceShape& shape,
                                           const float* partials, const int* places,
                                           const ReduceUnit& unit, int first_tap, int taps,
                                           int slice, int step, float* buffer) {
  constexpr int kTogether = 4;
  const int64_t slice_stride = step * g.partial_values();
  const int first_vector = unit.begin / 4, tap_vectors = (unit.end + 3) / 4 - first_vector;
  const int vectors = taps << shape.vector_bits;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < vectors; i += 32) {
    const int tap = i >> shape.vector_bits, vector = i & ((1 << shape.vector_bits) - 1);
    if (vector >= tap_vectors) continue;
    const int column = (first_vector + vector) * 4;
    const float* from = partials + places[first_tap + tap] + column + slice * g.partial_values();
    float4 sum = *reinterpret_cast<const float4*>(from);
    // The loads of several slices overlap; those beyond the last are zeros.
#pragma unroll 1
    for (int first = slice + step; first < g.slices; first += kTogether * step) {
      float4 values[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        from += slice_stride;
        values[j] = float4{0, 0, 0, 0};
        if (first + j * step < g.slices) values[j] = *reinterpret_cast<const float4*>(from);
      }
#pragma unroll
      for (const float4& value : values) {
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
      }
    }
    float* const to = buffer + tap * (g.atom_channels + 1) + column;
    to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
  }
}

template <OperandForm kForm>
__global__ void __launch_bounds__(kReduceThreads)
    wgrad_reduce_kernel(const __grid_constant__ WgradGeometry g,
                        const __grid_constant__ WgradCall call,
                        const __grid_constant__ ReduceShape shape) {
  using T = element_t<kForm>;
  extern __shared__ __align__(16) char memory[];
  auto* const places = reinterpret_cast<int*>(memory);
  int* const offsets = places + kMaxWgradTaps;
  auto* const buffers = reinterpret_cast<float*>(offsets + kMaxWgradTaps);
  auto* const shares = reinterpret_cast<double*>(buffers + kReduceWarps * kReduceBuffer);
  let_next_kernel_start();
  list_taps(g, places, offsets);
  wait_for_kernels_before();
  if (must_return(call)) return;
  __syncthreads();
  const SumFinisher<kForm> finisher(call);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int unit_warps = shape.unit_warps, block_units = kReduceWarps / unit_warps;
  const int own_unit = warp / unit_warps, share = warp - own_unit * unit_warps;
  const int row = g.atom_channels + 1;  // of a buffer
  float* const own_buffer = buffers + warp * kReduceBuffer;
  float* const unit_buffer = buffers + own_unit * unit_warps * kReduceBuffer;
  T* const dw = static_cast<T*>(call.w);

  for (int block = blockIdx.x; block * block_units < shape.units; block += gridDim.x) {
    const int index = block * block_units + own_unit;
    const ReduceUnit unit(g, shape, min(index, shape.units - 1));
    const int channels = index < shape.units ? max(unit.end - unit.begin, 0) : 0;
    for (int tap = 0; tap < shape.taps; tap += shape.chunk_taps) {
      const int taps = min(shape.chunk_taps, shape.taps - tap);
      if (channels > 0) {
        add_slices(g, shape, call.partials + unit.partial, places, unit, tap, taps, share,
                   unit_warps, own_buffer);
      }
      __syncthreads();
      bool is_wrong = false;
      // Values go from the buffers to dW in its order: taps of a channel, or channels of a tap.
      const auto finish = [&](int place) {
        float sum = unit_buffer[place];
#pragma unroll 1
        for (int j = 1; j < unit_warps; ++j) sum += unit_buffer[j * kReduceBuffer + place];
        return finisher.finish(sum, is_wrong);
      };
      const int first = thread - own_unit * unit_warps * 32, step = 32 * unit_warps;
      if (shape.stores_by_tap) {
        T* const to = dw + unit.find_offset(g, unit.begin);
        for (int i = first; i < channels * taps; i += step) {
          int column = i;
          const int of_chunk = shape.by_taps.split(column);
          to[i] = finish(of_chunk * row + column + unit.begin);
        }
      } else if (channels > 0) {
        for (int i = first; i < taps << g.atom_bits; i += step) {
          const int of_chunk = i >> g.atom_bits, column = i & (g.atom_channels - 1);
          if (column < unit.begin || column >= unit.end) continue;
          dw[unit.find_offset(g, column) + offsets[tap + of_chunk]] =
              finish(of_chunk * row + column);
        }
      }
      if (!__syncthreads_or(is_wrong)) continue;

      for (int other = 0; other < block_units && block * block_units + other < shape.units;
           ++other) {
        const ReduceUnit wrong(g, shape, block * block_units + other);
        for (int i = 0; i < taps; ++i) {
          for (int column = wrong.begin; column < wrong.end; ++column) {
            const WgradElement element(g, wrong.filter, wrong.first_column + column, tap + i);
            if (fabsf(to_accumulate(dw[element.offset(g)])) <= kLargestFinite) continue;
            element.recompute<T>(g, call, shares, kReduceThreads);
          }
        }
      }
    }
  }
}

inline ReduceShape make_reduce_shape(const WgradGeometry& g) {
  ReduceShape shape{};
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
  shape.chunk_taps = kReduceValues / g.atom_channels;
  shape.stores_by_tap = !g.folds_columns && shape.taps > 1 && shape.taps <= shape.chunk_taps &&
                        g.w_strides.c == shape.taps;
  shape.by_taps = FastDivmod(shape.taps);
  // As many warps as keep the GPU busy where units are few.
  shape.unit_warps = 1;
  while (shape.unit_warps < kReduceWarps && 2 * shape.unit_warps <= g.slices &&
         int64_t{shape.units} * shape.unit_warps < kReduceBlocks * kReduceWarps) {
    shape.unit_warps *= 2;
  }
  return shape;
}

// Starts the reduction of a form's partial sums.
template <OperandForm kForm>
void launch_wgrad_reduce(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  const ReduceShape shape = make_reduce_shape(g);
  const int block_units = kReduceWarps / shape.unit_warps;
  const int64_t blocks = (int64_t{shape.units} + block_units - 1) / block_units;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, kReduceBlocks)));
  launch_early<wgrad_reduce_kernel<kForm>>(site, grid, kReduceThreads, kReduceSharedBytes, g, call,
                                           shape);
}

}  // namespace convx
