// The convolution of windows of lines that lie in memory, on Hopper's tensor cores.
//
// A block: 3 warpgroups. Two multiply (window_multiply.cuh). Of the third, one thread copies
// stretches of lines, one packed filters, both as they lie, and two warps store sums, while the
// others go on with the next tile. Blocks are persistent: block b takes tiles b, b + gridDim.x, and
// so on. Or it walks (line_walk.cuh): it takes neighbouring tiles, and two warps turn what they
// reach.
#pragma once

#include "cuda/tensor_map.h"
#include "device/dependent_launch.cuh"
#include "engines/copy_filters.cuh"
#include "engines/cuda_lines/source_boxes.cuh"
#include "engines/cuda_lines/tile_roles.cuh"
#include "engines/cuda_lines/walk_roles.cuh"
#include "engines/run_flag.cuh"

namespace convx {

inline constexpr int kLinesThreads = 384;

// Of tensors that are read or stored by boxes.
struct WindowMaps {
  TensorMap source, target;
};

// One thread starts the copies of what tiles reach of the lines: a stretch per segment and plane.
__device__ __forceinline__ void copy_lines(const WindowParams& p, const WindowRings& rings,
                                           int planes) {
  const uint32_t segment_bytes = p.segment_length * p.lane_bytes;
  const int64_t line_bytes = p.line_positions * p.lane_bytes;
  RingCursor cursor;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const TilePlace tile = locate_tile(p, index);
    const int first = tile.first & -kLineAlignment;
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      const char* plane =
          static_cast<const char*>(p.lines_memory) +
          (static_cast<int64_t>(tile.group) * p.chunks + chunk) * planes * p.lines * line_bytes;
      const uint32_t full = rings.source_full + 8 * cursor.slot;
      uint32_t stage = rings.source + cursor.slot * rings.source_stage_bytes;
      wait_barrier(rings.source_empty + 8 * cursor.slot, cursor.parity ^ 1);
      arrive_expecting(full, planes * p.segments * segment_bytes);
      for (int i = 0; i < planes; ++i, stage += p.plane_bytes, plane += p.lines * line_bytes) {
        for (int s = 0; s < p.segments; ++s) {
          const int64_t position = first + p.segment[s].shift;
          bulk_copy(stage + s * segment_bytes,
                    plane + p.segment[s].line * line_bytes + position * p.lane_bytes, segment_bytes,
                    full);
        }
      }
      cursor.advance(p.source_stages);
    }
  }
}

template <TensorMath kMath, int kColumns, Pace kPace>
__global__ void __launch_bounds__(kLinesThreads, 1)
    lines_kernel(const __grid_constant__ WindowParams p, const __grid_constant__ WindowMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kWalks = kPace != Pace::kTiles;
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(p)) return;
  extern __shared__ char unaligned[];
  const uint32_t start = shared_address(unaligned);
  char* const memory = unaligned + ((1024 - (start & 1023)) & 1023);
  const WindowRings rings(p, shared_address(memory), count_planes(kMath));
  int* const taps = reinterpret_cast<int*>(memory + p.table_offset);
  int* const spoilt = taps - 2;  // behind the barriers
  // Where windows of taps start in a stage, or those of a single tap's steps, in 16-byte pieces.
  const int pieces = p.lane_bytes / 16;
  const bool single_tap = p.taps == 1;
  for (int i = threadIdx.x; i < (single_tap ? pieces / 2 : p.taps); i += blockDim.x) {
    taps[i] = single_tap ? p.tap_positions[0] * pieces + 2 * i : p.tap_positions[i] * pieces;
  }
  if (threadIdx.x < 2) spoilt[threadIdx.x] = 0;
  if (threadIdx.x == 0) rings.init(p);
  __syncthreads();
  // Together what the block starts with, 168 per thread.
  if (threadIdx.x < 256) {
    take_registers<208>();
    if constexpr (kWalks) {
      multiply_walk<kMath, kColumns, kPace>(p, rings, taps, memory);
    } else {
      multiply_tiles<kMath, kColumns>(p, rings, taps, memory, spoilt);
    }
  } else {
    give_registers<88>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32 - 8, 0);
    if (warp >= 2) {
      if constexpr (kWalks) {
        store_walk<kMath, kColumns, kPace>(p, rings, memory, warp - 2);
      } else {
        store_tiles<kMath, kColumns>(p, rings, memory, &maps.target, spoilt, warp - 2);
      }
      return;
    }
    if (threadIdx.x == 288) copy_filters(p, rings, p.taps, p.stage_taps, rings.tap_bytes);
    if constexpr (kWalks) {
      __syncwarp();
      LineTurner<kMath, kColumns>(p, rings, memory, warp);
    } else if (may_box(kMath) && p.box_columns > 0) {
      if (warp == 0) copy_boxes(p, rings, &maps.source);
    } else if (threadIdx.x == 256) {
      copy_lines(p, rings, count_planes(kMath));
    }
  }
#endif
}

}  // namespace convx
