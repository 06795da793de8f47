// Adds the partial sums of all split-K slices in a fixed order, and writes dW. Where channels are
// adjacent in dW, reduce_rows.cuh does it without shared memory between.
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
#include "engines/cuda/weight_grad/reduce_rows.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

// Blocks of the reduction: as many as 132 multiprocessors hold, five each by shared memory.
inline constexpr int64_t kReduceBlocks = 660;
inline constexpr int kReduceWarps = kReduceThreads / 32;
inline constexpr int kReduceValues = 1024;  // of a unit, at a time
// Rows of a chunk are one value longer than the tile has channels, so that neighbouring taps are in
// different banks.
inline constexpr int kReduceBuffer = kReduceValues + kReduceValues / 16;
inline constexpr int kReduceSharedBytes =
    kMaxWgradTaps * 8 + kReduceWarps * kReduceBuffer * 4 + kReduceThreads * 8;

// How the reduction is spread over blocks and warps.
struct ReduceShape : ReduceTiles {
  int unit_warps;  // that add one unit, a power of two up to 8
  int chunk_taps;
  // A unit's elements lie side by side in dW, taps innermost, and a chunk has all of them.
  bool stores_by_tap;
  FastDivmod by_taps;
};

// Adds the unit's values of taps [first_tap, first_tap + taps), of every step-th slice. A lane adds
// four neighbouring columns. Columns of other groups, and atoms that no tap uses, have partial sums
// as well, which nobody needs; of a narrow group few columns are read.
__device__ __forceinline__ void add_unit(const WgradGeometry& g, const ReduceShape& shape,
                                         const float* partials, const int* places,
                                         const ReduceUnit& unit, int first_tap, int taps, int slice,
                                         int step, float* buffer) {
  const int first_vector = unit.begin / 4, tap_vectors = (unit.end + 3) / 4 - first_vector;
  const int vectors = taps << shape.vector_bits;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < vectors; i += 32) {
    const int tap = i >> shape.vector_bits, vector = i & ((1 << shape.vector_bits) - 1);
    if (vector >= tap_vectors) continue;
    const int column = (first_vector + vector) * 4;
    const float4 sum = add_slices(g, partials + places[first_tap + tap] + column, slice, step);
    float* const to = buffer + tap * (g.atom_channels + 1) + column;
    to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
  }
}

template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    wgrad_reduce_kernel(const __grid_constant__ WgradGeometry g,
                        const __grid_constant__ WgradCall call,
                        const __grid_constant__ ReduceShape shape, OperandForm form) {
  extern __shared__ __align__(16) char memory[];
  auto* const places = reinterpret_cast<int*>(memory);
  int* const offsets = places + kMaxWgradTaps;
  auto* const buffers = reinterpret_cast<float*>(offsets + kMaxWgradTaps);
  auto* const shares = reinterpret_cast<double*>(buffers + kReduceWarps * kReduceBuffer);
  list_taps(g, places, offsets);
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(call)) return;
  __syncthreads();
  const PartialSumFinisher<T> finisher(call, form);
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
        add_unit(g, shape, call.partials + unit.partial, places, unit, tap, taps, share, unit_warps,
                 own_buffer);
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
  ReduceShape shape{make_reduce_tiles(g)};
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
  if (can_reduce_rows(g)) return launch_reduce_rows<kForm>(site, g, call);
  const ReduceShape shape = make_reduce_shape(g);
  const int block_units = kReduceWarps / shape.unit_warps;
  const int64_t blocks = (int64_t{shape.units} + block_units - 1) / block_units;
  const Grid grid(std::min<int64_t>(blocks, kReduceBlocks));
  launch_early<wgrad_reduce_kernel<element_t<kForm>>>(site, grid, kReduceThreads,
                                                      kReduceSharedBytes, g, call, shape, kForm);
}

}  // namespace convx
