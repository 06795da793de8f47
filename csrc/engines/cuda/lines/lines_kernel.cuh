// The main kernel of cuda_lines: convolution on Hopper's tensor cores (sm_90a, wgmma).
//
//   target[f][i] = bias[f] + sum over c, t of  filter[f][t][c] * line[i + shift(t)][c]
//
// where c is a channel, t a tap, i a position of the flattened, padded image (window_shape.h), and
// shift(t) a constant.
//
//   tile    2 windows x 64 filters, or 1 window x 128 filters
//
//             warpgroup 0      warpgroup 1               kColumns positions
//            +------------+   +------------+             +-------------+
//     64 f   |  window 0  |   |  window 1  |  or  64 f   | warpgroup 0 |
//            +------------+   +------------+             +-------------+
//               kColumns         kColumns         64 f   | warpgroup 1 |
//                                                        +-------------+
//
// Warps, 384 threads. Blocks are persistent, at most one per SM.
//   0-7    two MMA warpgroups: wgmma, then staging of accumulators (window_multiply.cuh,
//          stage_accumulators.cuh)
//   8      source producer: bulk copies of line segments, or TMA boxes (tile_roles.cuh)
//   9      filter producer: bulk copies of packed filters (fill_stages.cuh)
//   10-11  store warps, one per MMA warpgroup (store_staged.cuh, store_carried.cuh)
// In streaming blocks (line_stream.cuh), warps 8 and 9 transpose source rows instead; warp 9 first
// loads the filters, which then stay.
//
// Shared memory:
//   barriers and flags       1 KiB; a flag asks for accumulators to be recomputed
//   tap table                4 bytes per tap
//   staging                  2 x 64 filters x staging_pitch    76 KiB for 256 columns in 16 bits
//   source ring              source_stages x components x plane_bytes, at most 3 stages
//   filter ring              filter_stages x stage_taps x tap_bytes, or all filters if they fit
//
// Limit: the epilogue, for most layers. Without it seed62 in bf16 reached 824 TFLOP/s (H200,
// 2026-11-15, docs/engines/cuda_lines.md).
#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "cuda/tensor_map.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda/lines/line_stream.cuh"
#include "engines/cuda/lines/prepare_kernel.cuh"
#include "engines/cuda/lines/tile_roles.cuh"
#include "engines/cuda/lines/window_fit.h"
#include "kernels/around_mma.h"
#include "kernels/fill_stages.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

inline constexpr int kLinesThreads = 384;

// Tensor maps, set for the tensors that TMA reads or stores.
struct WindowMaps {
  TensorMap source, target;
};

template <TensorMath kMath, int kColumns, Pace kPace>
__global__ void __launch_bounds__(kLinesThreads, 1)
    lines_kernel(const __grid_constant__ WindowParams p, const __grid_constant__ WindowMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kStreams = kPace != Pace::kTiles;
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(p)) return;
  extern __shared__ char unaligned[];
  const uint32_t start = shared_address(unaligned);
  char* const memory = unaligned + ((1024 - (start & 1023)) & 1023);
  const WindowRings rings(p, shared_address(memory), count_planes(kMath));
  int* const taps = reinterpret_cast<int*>(memory + p.table_offset);
  int* const must_recompute = taps - 2;  // two flags, in the last 8 bytes of the barriers' KiB
  // The start of each tap's window in a stage, in 16-byte units. For a single tap, the start of
  // each of its reduction steps.
  const int pieces = p.lane_bytes / 16;
  const bool single_tap = p.taps == 1;
  for (int i = threadIdx.x; i < (single_tap ? pieces / 2 : p.taps); i += blockDim.x) {
    taps[i] = single_tap ? p.tap_positions[0] * pieces + 2 * i : p.tap_positions[i] * pieces;
  }
  if (threadIdx.x < 2) must_recompute[threadIdx.x] = 0;
  if (threadIdx.x == 0) rings.init(p);
  __syncthreads();
  // 256 x 208 + 128 x 88 registers are the 384 x 168 that the block starts with.
  if (threadIdx.x < 256) {
    take_registers<208>();
    if constexpr (kStreams) {
      multiply_stream<kMath, kColumns, kPace>(p, rings, taps, memory);
    } else {
      multiply_tiles<kMath, kColumns>(p, rings, taps, memory, must_recompute);
    }
  } else {
    give_registers<88>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 - 8, 0);
    if (warp >= 2) {
      if constexpr (kStreams) {
        store_stream<kMath, kColumns, kPace>(p, rings, memory, warp - 2);
      } else {
        store_tiles<kMath, kColumns>(p, rings, memory, &maps.target, must_recompute, warp - 2);
      }
      return;
    }
    if (threadIdx.x == 288) copy_filters(p, rings, p.taps, p.stage_taps, rings.tap_bytes);
    if constexpr (kStreams) {
      __syncwarp();
      LineTransposer<kMath, kColumns>(p, rings, memory, warp);
    } else if (may_box(kMath) && p.box_columns > 0) {
      if (warp == 0) copy_boxes(p, rings, &maps.source);
    } else if (threadIdx.x == 256) {
      copy_lines(p, rings, count_planes(kMath));
    }
  }
#endif
}

template <TensorMath kMath, int kColumns, Pace kPace>
void start_multiplying(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
                       const WindowMaps& maps) {
  const Grid grid(std::min(params.tiles, shape.blocks));
  launch_early<lines_kernel<kMath, kColumns, kPace>>(site, grid, kLinesThreads, shape.shared_bytes,
                                                     params, maps);
}

template <TensorMath kMath>
void multiply_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
                    const WindowMaps& maps) {
  launch_listed<window_columns<kMath>()>(site, shape.columns, [&]<int kColumns>() {
    if constexpr (may_stream(kMath) && kColumns == kStreamColumns) {
      if constexpr (may_carry(kMath)) {
        if (params.carries) {
          return start_multiplying<kMath, kColumns, Pace::kCarry>(site, shape, params, maps);
        }
      }
      if (shape.streams()) {
        return start_multiplying<kMath, kColumns, Pace::kStream>(site, shape, params, maps);
      }
    }
    start_multiplying<kMath, kColumns, Pace::kTiles>(site, shape, params, maps);
  });
}

// The maps of the tensors that TMA reads or stores.
template <TensorMath kMath>
WindowMaps map_tensors(const LaunchSite& site, const WindowShape& shape, const WindowParams& p) {
  WindowMaps maps{};
  if constexpr (may_box(kMath)) {
    constexpr int64_t kElement = 2;
    if (p.box_columns > 0 && p.wide_channels) {
      maps.source = make_tensor_map(
          site,
          {.base = p.source,
           .extent = {int64_t{p.groups} * p.group_sources, p.source_width, p.source_height,
                      p.images},
           .stride_bytes = {kElement * p.source_w, kElement * p.source_h, kElement * p.source_n},
           .box = {p.chunk_channels, p.box_columns, p.box_rows, 1},
           .step = {1, p.source_step_w, p.box_rows > 1 ? p.source_step_h : 1, 1},
           .swizzle_bytes = p.lane_bytes});
    }
    if (p.boxed_target) {
      maps.target = make_tensor_map(
          site,
          {.base = p.target,
           .extent = {int64_t{p.groups} * p.group_targets, p.target_width, p.target_height,
                      p.images},
           .stride_bytes = {kElement * p.target_w, kElement * p.target_h, kElement * p.target_n},
           .box = {kWindowFilters, shape.columns, 1, 1},
           .step = {1, 1, 1, 1},
           .swizzle_bytes = kBoxedFilterBytes});
    }
  }
  return maps;
}

// Launches the kernels of one call, for one operand format: measure_kernel (scaled fp16 only),
// then, for each batch of images whose lines fit in the workspace, prepare_kernel and lines_kernel.
// The filters are packed with the first batch. Split-K slices are added at the end.
template <TensorMath kMath>
void launch_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& whole) {
  using Element = typename TensorTypes<kMath>::Element;
  WindowParams params = whole;
  if constexpr (is_half(kMath)) measure(site, params);
  const int per_pixel_tile = params.tiles / static_cast<int>(shape.pixel_tiles);
  for (int first = 0; first < whole.images; first += shape.images) {
    params.images = std::min(shape.images, whole.images - first);
    params.tiles = static_cast<int>(count_pixel_tiles(shape, params.images)) * per_pixel_tile;
    prepare<kMath>(site, shape, params, first == 0);
    multiply_lines<kMath>(site, shape, params, map_tensors<kMath>(site, shape, params));
    params.source = static_cast<const Element*>(params.source) + params.images * params.source_n;
    params.target = static_cast<Element*>(params.target) + params.images * params.target_n;
  }
  if (shape.splits > 1) sum_partials(site, whole, whole.splits);
}

}  // namespace convx
