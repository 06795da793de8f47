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
//          sum_stager.cuh)
//   8      source producer: bulk copies of line segments, or TMA boxes (source_boxes.cuh)
//   9      filter producer: bulk copies of packed filters (copy_filters.cuh)
//   10-11  store warps, one per MMA warpgroup (sum_storer.cuh, carry_storer.cuh)
// In streaming blocks (line_walk.cuh), warps 8 and 9 transpose source rows instead; warp 9 first
// loads the filters, which then stay.
//
// Shared memory:
//   barriers, spoilt flags   1 KiB; a flag asks for accumulators to be recomputed
//   tap table                4 bytes per tap
//   staging                  2 x 64 filters x staging_pitch    76 KiB for 256 columns in 16 bits
//   source ring              source_stages x components x plane_bytes, at most 3 stages
//   filter ring              filter_stages x stage_taps x tap_bytes, or all filters if they fit
//
// Limit: the epilogue, for most layers. Without it seed62 in bf16 reached 824 TFLOP/s (H200,
// 2026-11-15, docs/engines/cuda_lines.md).
#pragma once

#include "cuda/tensor_map.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda/lines/source_boxes.cuh"
#include "engines/cuda/lines/tile_roles.cuh"
#include "engines/cuda/lines/walk_roles.cuh"
#include "kernels/copy_filters.cuh"
#include "kernels/run_flag.cuh"

namespace convx {

inline constexpr int kLinesThreads = 384;

// Tensor maps, set for the tensors that TMA reads or stores.
struct WindowMaps {
  TensorMap source, target;
};

// The source producer, one thread: fills the source ring with the segments of each chunk, one bulk
// copy per segment and component.
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
  int* const spoilt = taps - 2;  // two flags, in the last 8 bytes of the barriers' KiB
  // The start of each tap's window in a stage, in 16-byte units. For a single tap, the start of
  // each of its reduction steps.
  const int pieces = p.lane_bytes / 16;
  const bool single_tap = p.taps == 1;
  for (int i = threadIdx.x; i < (single_tap ? pieces / 2 : p.taps); i += blockDim.x) {
    taps[i] = single_tap ? p.tap_positions[0] * pieces + 2 * i : p.tap_positions[i] * pieces;
  }
  if (threadIdx.x < 2) spoilt[threadIdx.x] = 0;
  if (threadIdx.x == 0) rings.init(p);
  __syncthreads();
  // 256 x 208 + 128 x 88 registers are the 384 x 168 that the block starts with.
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
