// Packs the filters in the layout of the B operand:
//
//     packed [filter tile][chunk][step][component][filters of a tile][32 bytes of k]
//
// Each [filters][32 bytes] is arranged as in shared memory, so that whole stages are plain copies.
#pragma once

#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "engines/cuda/pixels/pixel_place.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/stage_filters.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

enum class FilterOrder : uint8_t {
  kSwizzled,   // wgmma: 32-byte rows, their halves swapped in every other group of 4 rows
  kFragments,  // mma.sync: [16 filters][lane][16 bytes], see place_fragment
};

// Byte offset of the first word of half a filter's 32 bytes; each further word is 16 bytes on. In
// an MMA, lane 4(f%8) + j of a warp has filters f and f + 8 of 16, and word j of each half. Its 16
// bytes are both halves of filter f, then of filter f + 8.
__host__ __device__ constexpr int place_fragment(int filter, int half) {
  return filter / 16 * 512 + filter % 8 * 64 + (filter / 8 % 2 * 2 + half) * 4;
}

// A channel of the chunk and a tap; k of the padding has none.
struct PackedTerm {
  int channel, tap;
  bool exists;
};

// The terms of steps in which k has taps and channels.
__device__ __forceinline__ PackedTerm find_folded(const PixelParams& p, const FilterStage& stage,
                                                  int k) {
  int channel = k;
  const int tap = stage.by_taps.split(channel);
  return {channel, tap, channel < p.chunk_channels};
}

// Finds a term where neighbouring columns are pairs.
__device__ __forceinline__ PackedTerm find_paired(const PixelParams& p, int k) {
  const TapPair at = locate_pair(p, k / 2);
  const int column = 2 * at.column + k % 2 - p.pair_lead;
  const bool exists = at.channel < p.chunk_channels && column >= 0 && column < p.tap_columns;
  return {at.channel, at.row * p.tap_columns + column, exists};
}

// A block packs a chunk of channels of a few filters. Grid: (filters of all tiles / rows, chunks).
// Neighbouring threads write neighbouring bytes.
template <TensorMath kMath, FilterOrder kOrder>
__device__ __forceinline__ void pack_filters(const PixelParams& p, const FilterStage& stage,
                                             float* staged) {
  using T = typename TensorTypes<kMath>::Element;
  constexpr int kDepth = step_depth(kMath);
  const int rows = stage.rows;
  const int first_row = blockIdx.x * rows;             // row among all filter tiles
  const int filter_tile = first_row / p.tile_filters;  // index among all groups
  const int row_of_tile = first_row % p.tile_filters;
  const int group = filter_tile / p.filter_tiles;
  const int first_filter = (filter_tile - group * p.filter_tiles) * p.tile_filters + row_of_tile;
  const int first_channel = blockIdx.y * p.chunk_channels;
  const T* const filters = static_cast<const T*>(p.filters) + group * p.filter_group +
                           first_filter * p.filter_target + first_channel * p.filter_source;
  stage_filters(stage, filters, p.group_targets - first_filter, p.group_sources - first_channel,
                staged);
  __syncthreads();

  const int plane_bytes = p.tile_filters * kStepBytes;
  char* const chunk =
      static_cast<char*>(const_cast<void*>(p.packed)) +
      (static_cast<int64_t>(filter_tile) * p.chunks + blockIdx.y) * p.steps * p.step_bytes;
  const int row_shift = __popc(rows - 1);  // rows is a power of 2
  for (int i = threadIdx.x; i < p.steps * rows * 2; i += blockDim.x) {
    const int piece = i % 2;  // half of a filter's 32 bytes
    const int row = (i / 2) & (rows - 1);
    const int step = i / 2 >> row_shift;
    float values[kDepth / 2];
#pragma unroll
    for (int n = 0; n < kDepth / 2; ++n) {
      const int k = piece * (kDepth / 2) + n;
      PackedTerm term{k, step, k < p.chunk_channels};
      if (p.folded) term = find_folded(p, stage, step * kDepth + k);
      if constexpr (can_be_paired(kMath)) {
        if (p.paired) term = find_paired(p, step * kDepth + k);
      }
      values[n] = term.exists ? staged[stage.place(row, term.channel, term.tap)] : 0.f;
    }
    if constexpr (is_half(kMath)) {
      const int filter = min(first_filter + row, p.group_targets - 1);
      scale_filter(p.scales, group * p.group_targets + filter, values);
    }
    char* const to = chunk + static_cast<int64_t>(step) * p.step_bytes;
    const OperandWords<kMath> words(values);
#pragma unroll
    for (int plane = 0; plane < count_planes(kMath); ++plane) {
      const uint4& part = words.part[plane];
      if constexpr (kOrder == FilterOrder::kSwizzled) {
        const int offset = (row_of_tile + row) * kStepBytes + 16 * piece;
        const int place = offset ^ ((offset >> 7 & 1) << 4);
        *reinterpret_cast<uint4*>(to + place + plane * plane_bytes) = part;
      } else {
        const int place = place_fragment(row_of_tile + row, piece);
        uint32_t* const lane = reinterpret_cast<uint32_t*>(to + place + plane * plane_bytes);
        lane[0] = part.x, lane[4] = part.y, lane[8] = part.z, lane[12] = part.w;
      }
    }
  }
}

// Compiled for the architectures of the kernels that read its output.
template <TensorMath kMath, FilterOrder kOrder>
__global__ void pack_pixel_filters_kernel(const __grid_constant__ PixelParams p,
                                          const __grid_constant__ FilterStage stage) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kCompiled = true;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr bool kCompiled = kOrder == FilterOrder::kFragments;
#else
  constexpr bool kCompiled = false;
#endif
  if constexpr (kCompiled) {
    extern __shared__ float staged[];
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (kOrder == FilterOrder::kSwizzled) {
      wait_for_kernels_before();
      let_next_kernel_start();
    }
#endif
    if (__syncthreads_or(must_return(p))) return;  // other blocks may be about to set the flag
    pack_filters<kMath, kOrder>(p, stage, staged);
  }
}

template <TensorMath kMath, FilterOrder kOrder>
void pack_pixel_filters(const LaunchSite& site, const PixelShape& shape,
                        const PixelParams& params) {
  constexpr int64_t kStagingLimit = 32 << 10;
  constexpr int kThreads = 256;
  int rows = 8;
  FilterStage stage = make_filter_stage(params, rows, params.chunk_channels);
  while (rows > 1 && stage.shared_bytes() > kStagingLimit) {
    rows /= 2;
    stage = make_filter_stage(params, rows, params.chunk_channels);
  }
  const int64_t filters = int64_t{shape.filters} * shape.filter_tiles * site.problem->groups;
  const Grid grid(filters / rows, params.chunks);
  constexpr auto kKernel = pack_pixel_filters_kernel<packing_math(kMath), kOrder>;
  if constexpr (kOrder == FilterOrder::kSwizzled) {
    launch_early<kKernel>(site, grid, kThreads, stage.shared_bytes(), params, stage);
  } else {
    launch_kernel<kKernel>(site, grid, kThreads, stage.shared_bytes(), params, stage);
  }
}

}  // namespace convx
