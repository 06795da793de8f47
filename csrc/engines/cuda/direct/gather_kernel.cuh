// Forward and input gradient for any stride, dilation and layout, on FFMA units:
//
//     target[k][pixel] = bias[k] + sum over c and taps of  source[c][pixel under the tap] * w
//
// Tile: kFilters target channels of one group for tile_images images x rows x strips. A strip is 8
// neighbouring lattice columns (of one lane, see gather_axis.h).
//
//                    strips (8 pixels each)                 thread: kPerThread filters x 1 strip
//                 +----+----+----+----+  -+                 warp:   kLaneGroups groups of filters
//        rows     |    |    |    |    |   |                         x 32/kLaneGroups strips
//                 +----+----+----+----+   | x tile_images   block:  kWarpsK x kWarpsP warps, all
//                 |    |    |    |    |   |                         with the same role
//                 +----+----+----+----+  -+
//
// The reduction runs in chunks of channels x row_taps x column_taps through two stages (cp.async),
// or one stage if there is only one chunk.
// Source values outside the image are staged as zeros, so the inner loop needs no bounds checks. A
// window holds the 8 + taps - 1 source columns that a strip needs: up to four taps are multiplied
// from one set of registers, and every shared-memory load is 16 bytes wide and aligned. With one
// lane (the dilation divides the stride) the windows of neighbouring strips overlap in one run of
// columns per class. Otherwise strips are an odd multiple of 16 bytes apart, to spread over the
// banks.
//
// Long float32 sums are cut into accumulation chains (kChainLimit), each of which is added to the
// target. A thread adds only to elements that it has itself written.
//
// Shared memory (stages in the accumulation type):
//     stages    [2] source [channels][image][row class][row + row tap][strip][column class][window]
//                   weights [channels][row tap][column tap][kFilters]
//     table     source positions that each thread copies, 16 bytes each
//     buffer    per warp, 32 x 8 values, for the transpose in the epilogue; reuses the stages
//               unless there are several chains
// Grid: filter tile fastest, then group, strip tile, row tile, column phase, row phase, images.
#pragma once

#include "engines/cuda/direct/gather_load.cuh"
#include "engines/cuda/direct/gather_multiply.cuh"
#include "engines/cuda/direct/gather_store.cuh"

namespace convx {

// Two blocks of 256 threads or four of 128 share a multiprocessor's registers: 128 per thread, or
// 80 if a thread has few accumulators. float64 accumulators take twice the registers.
template <typename T, typename Tile>
constexpr int kGatherBlocks =
    (sizeof(T) == 8 ? 256 : 512) / Tile::kThreads * (Tile::kPerThread >= 8 ? 2 : 3) / 2;

template <typename T, typename Tile, bool kInChains>
__global__ void __launch_bounds__(Tile::kThreads, (kGatherBlocks<T, Tile>))
    gather_kernel(const __grid_constant__ GatherParams p) {
  using Acc = accumulate_t<T>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  Acc* stages = reinterpret_cast<Acc*>(shared_bytes);
  CopyEntry* table = reinterpret_cast<CopyEntry*>(shared_bytes + p.table_offset);
  const GatherBlock block = locate_block(p);
  if (block.empty) return;

  // Bits 1 to 3 of the lane select the strip, bits 0 and 4 the group of filters. Pairs of lanes
  // then share addresses, so that a 16-byte load takes the fewest wavefronts.
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int lane_group = 0;
  int lane_strip = lane;
  if constexpr (Tile::kLaneGroups == 4) {
    lane_group = (lane & 1) | ((lane >> 3) & 2);
    lane_strip = (lane >> 1) & 7;
  } else if constexpr (Tile::kLaneGroups == 2) {
    lane_group = lane & 1;
    lane_strip = lane >> 1;
  }
  const int tile_filter =
      ((warp % Tile::kWarpsK) * Tile::kLaneGroups + lane_group) * Tile::kPerThread;
  const int strip = (warp / Tile::kWarpsK) * Tile::kWarpStrips + lane_strip;

  // Offset of the strip in the source tile under tap 0. Idle strips read strip 0.
  int rest = strip;
  const int tile_strip = p.by_strips.split(rest);
  const int tile_row = p.by_rows.split(rest);
  const int line = rest * block.row->staged_classes * block.row->staged_length + tile_row;
  const int strip_base =
      rest < p.tile_images ? line * block.column->row_pitch + tile_strip * block.column->strip_pitch
                           : 0;

  Acc sum[Tile::kPerThread][kStrip] = {};
  Acc* buffer = reinterpret_cast<Acc*>(shared_bytes + p.transpose_offset) + warp * 32 * kStrip;
  const int first_filter = block.filter_tile * Tile::kFilters + tile_filter;
  bool add = false;  // earlier chains are already in the target
  if (block.row->taps > 0 && block.column->taps > 0) {
    GatherChunk chunk = first_chunk(p, block);
    GatherChunk next = chunk;
    int stage = 0;
    load_chunk<T, Tile>(p, block, chunk, table, stages);
    commit_copies();
    bool more = true;
    int chain = 0;  // terms added to the accumulators
    while (more) {
      more = advance_chunk(p, block, next);
      if (more) {
        load_chunk<T, Tile>(p, block, next, table, stages + (stage ^ 1) * p.stage_elements);
        commit_copies();
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();
      const int products = chunk.channels * chunk.row_taps * chunk.column_taps;
      if constexpr (kInChains) {
        if (chain > 0 && chain + products > p.chain_limit) {
          store_tile<T, Tile>(p, block, first_filter, strip, add, false, buffer, sum);
          clear_sums<Tile>(sum);
          add = true;
          chain = 0;
        }
      }
      chain += products;
      const Acc* current = stages + stage * p.stage_elements;
      multiply_chunk<Tile>(p, block, chunk, current + strip_base,
                           current + p.weight_offset + tile_filter, sum);
      __syncthreads();
      chunk = next;
      stage ^= 1;
    }
  }
  store_tile<T, Tile>(p, block, first_filter, strip, add, true, buffer, sum);
}

}  // namespace convx
