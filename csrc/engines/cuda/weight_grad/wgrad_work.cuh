// What a block of the weight gradient computes, and where its buffers are in shared memory.
#pragma once

#include <cstdint>

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"

namespace convx {

// The first tile of channels that a block of filters reads.
__device__ __forceinline__ int find_first_tile(const WgradGeometry& g, int filter_block) {
  if (g.group_filters == g.filters) return 0;
  const int filter = filter_block * g.block_filter_tiles * kTileFilters;
  return g.by_group_filters.divide(filter) * g.group_channels >> g.atom_bits;
}

// What a block accumulates: tiles of filters and of channels, and a range of tap groups. Blocks of
// grouped convolutions may lie beyond the channels that their filters read: those are empty.
struct WgradTile {
  int filter_tile, channel_tile;
  int first_group, last_group;
  bool is_empty;

  __device__ WgradTile(const WgradGeometry& g, int index) {
    int filter_block = index;
    const int group_block = g.by_group_blocks.split(filter_block);
    const int channel_block = g.by_channel_blocks.split(filter_block);
    filter_tile = filter_block * g.block_filter_tiles;
    first_group = g.block_groups[group_block];
    last_group = g.block_groups[group_block + 1];
    const int first_filter = filter_tile * kTileFilters;
    const int end_filter = first_filter + g.block_filter_tiles * kTileFilters;
    const int last_filter = (end_filter < g.filters ? end_filter : g.filters) - 1;
    const bool is_grouped = g.group_filters < g.filters;
    channel_tile = find_first_tile(g, filter_block) + channel_block * g.block_channel_tiles;
    const int end_channel = is_grouped
                                ? (g.by_group_filters.divide(last_filter) + 1) * g.group_channels
                                : g.packed_channels;
    is_empty = channel_tile * g.atom_channels >= end_channel;
  }
};

// Which tile and which split-K slice a block has.
struct WgradIndex {
  int tile, slice;

  __device__ __forceinline__ WgradIndex(const WgradGeometry& g, int block) {
    int major = block;
    const int minor = g.by_grid_minor.split(major);
    tile = g.writes_result ? major : minor;
    slice = g.writes_result ? minor : major;
  }
};

// What a block multiplies: a tile, over the positions of a slice.
struct WgradWork {
  int tile_index, slice;
  WgradTile tile;
  int first_stage;  // of the round
  int stages;
  int stage_step;  // from one of them to the next

  __device__ WgradWork(const WgradGeometry& g, const WgradCall& call, const WgradIndex& index)
      : tile_index(index.tile), slice(index.slice), tile(g, index.tile) {
    first_stage =
        g.takes_turns ? slice : slice * call.slice_stages + min(slice, call.longer_slices);
    stages = call.slice_stages + (slice < call.longer_slices ? 1 : 0);
    stage_step = call.stage_step;
  }
};

// The first multiple of 1 KiB in the block's shared memory.
__device__ __forceinline__ uint32_t align_start(const void* memory) {
  return (shared_address(memory) + 1023) / 1024 * 1024;
}

// Where blocks that write dW have accumulators (wgrad_store.cuh) in shared memory.
struct StoreMemory {
  uint32_t staged;  // over the operands
  char* staged_pointer;
  uint32_t table;  // of stored elements, behind both

  // start: an address in the block's shared memory, which begins at `memory`.
  __device__ StoreMemory(const WgradGeometry& g, uint32_t start, char* memory)
      : staged(start + 1024),
        staged_pointer(memory + (staged - shared_address(memory))),
        table(start + g.table_offset) {}
};

// Addresses in shared memory.
struct WgradMemory : StoreMemory {
  uint32_t full, empty;  // barriers, one per stage
  uint32_t gradient, input;
  uint32_t gradient_stage_bytes;  // all filter tiles and components
  uint32_t input_stage_bytes;     // one channel tile, one component
  uint32_t ring_bytes;            // the same, mirrored stages included

  __device__ WgradMemory(const WgradGeometry& g, int components, char* memory)
      : StoreMemory(g, align_start(memory), memory) {
    const uint32_t start = align_start(memory);
    full = start, empty = start + 8 * g.stages;
    gradient = start + 1024;
    gradient_stage_bytes = components * g.block_filter_tiles * kStagePositions * kGradientRowBytes;
    input = gradient + g.stages * gradient_stage_bytes;
    input_stage_bytes = kStagePositions * g.row_bytes;
    ring_bytes = (g.ring_stages + g.mirrored_stages) * input_stage_bytes;
  }

  __device__ void init_barriers(const WgradGeometry& g) const {
#pragma unroll 1
    for (int i = 0; i < g.stages; ++i) {
      init_barrier(full + 8 * i, g.converts() ? kConverterWarps : 2);  // the producers
      init_barrier(empty + 8 * i, 4 * g.consumers());  // a lane of each consumer warp
    }
    fence_barrier_init();
  }
};

}  // namespace convx
