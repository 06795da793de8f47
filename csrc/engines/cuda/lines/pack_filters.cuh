// Packs filters into the layout that wgmma reads from shared memory:
//
//   packed [filter tile][chunk][tap][64-filter half of the tile][component][64][lane_bytes]
//
// Each [64][lane_bytes] is swizzled as in shared memory, so a whole filter stage is one bulk copy.
#pragma once

#include "device/convert.cuh"
#include "device/swizzle.cuh"
#include "engines/cuda/lines/window_params.h"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

inline constexpr int kPrepareThreads = 256;  // per block of prepare_kernel

// Called by a block, for a chunk of the channels of `rows` filters, and all taps. Neighbouring
// threads read neighbouring taps and channels, and write neighbouring bytes. staged: shared memory
// for [rows][chunk_channels][taps].
template <TensorMath kMath>
__device__ __forceinline__ void pack_filters(const WindowParams& p, int rows, int row_block,
                                             int chunk_index, float* staged) {
  using T = typename TensorTypes<kMath>::Element;
  constexpr int kPlanes = count_planes(kMath);
  constexpr int kValues = OperandWords<kMath>::kValues;
  const int first_row = row_block * rows;          // counted over all filter tiles, 64 per half
  const int half = first_row / kWindowFilters;     // counted over all tiles
  const int filter_tile = half / p.filter_groups;  // counted over all groups
  const int group = filter_tile / p.filter_tiles;
  const int tile_filters = kWindowFilters * p.filter_groups;
  const int first_filter =
      (filter_tile - group * p.filter_tiles) * tile_filters + first_row % tile_filters;
  const int first_channel = chunk_index * p.chunk_channels;
  const int per_row = p.chunk_channels * p.taps;
  const T* filters = static_cast<const T*>(p.filters) + group * p.filter_group;

  if (p.dense_filters) {  // a row's values are contiguous
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * per_row; i += kPrepareThreads) {
      int row = i;
      const int inner = p.by_packed_row.split(row) + first_channel * p.taps;
      const bool inside = first_filter + row < p.group_targets && inner < p.group_sources * p.taps;
      staged[i] =
          inside ? to_accumulate(filters[(first_filter + row) * p.filter_target + inner]) : 0.f;
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * per_row; i += kPrepareThreads) {
      int row = i;
      int channel = first_channel * p.taps + p.by_packed_row.split(row);  // channel * taps + tap
      int r = p.by_taps.split(channel);
      const int s = p.by_tap_columns.split(r);
      const int filter = first_filter + row;
      const bool inside = filter < p.group_targets && channel < p.group_sources;
      staged[i] = inside
                      ? to_accumulate(filters[filter * p.filter_target + channel * p.filter_source +
                                              (p.tap_r0 + r * p.tap_r_step) * p.filter_r +
                                              (p.tap_s0 + s * p.tap_s_step) * p.filter_s])
                      : 0.f;
    }
  }
  __syncthreads();

  const int plane_bytes = kWindowFilters * p.lane_bytes;
  const int tap_bytes = p.filter_groups * kPlanes * plane_bytes;
  char* chunk = static_cast<char*>(const_cast<void*>(p.packed)) +
                (static_cast<int64_t>(filter_tile) * p.chunks + chunk_index) * p.taps * tap_bytes +
                (half - filter_tile * p.filter_groups) * kPlanes * plane_bytes;
  const int units = p.lane_bytes / 16;  // a power of 2, and so is rows
  const int unit_shift = __popc(units - 1), row_shift = __popc(rows - 1);
  for (int i = threadIdx.x; i < p.taps * rows * units; i += kPrepareThreads) {
    const int unit = i & (units - 1);
    const int row = (i >> unit_shift) & (rows - 1);
    const int tap = i >> (unit_shift + row_shift);
    const float* from = staged + row * per_row + unit * kValues * p.taps + tap;
    float values[kValues];
#pragma unroll
    for (int c = 0; c < kValues; ++c) values[c] = from[c * p.taps];
    if constexpr (is_half(kMath)) {
      const int filter = min(first_filter + row, p.group_targets - 1);
      scale_filter(p.scales, group * p.group_targets + filter, values);
    }
    const OperandWords<kMath> words(values);
    char* const to =
        chunk + tap * tap_bytes +
        swizzle((first_row % kWindowFilters + row) * p.lane_bytes + unit * 16, p.lane_bytes);
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      *reinterpret_cast<uint4*>(to + plane * plane_bytes) = words.part[plane];
    }
  }
}

}  // namespace convx
