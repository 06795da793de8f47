// What a block of the weight gradient works on, and where its buffers are in shared memory.
#pragma once

#include <cstdint>

#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"
#include "engines/cuda/weight_grad/wgrad_tile.cuh"

namespace convx {

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

  __device__ WgradWork(const WgradGeometry& g, const WgradCall& call, const WgradIndex& index)
      : tile_index(index.tile), slice(index.slice), tile(g, index.tile) {
    first_stage = slice * call.slice_stages + min(slice, call.longer_slices);
    stages = call.slice_stages + (slice < call.longer_slices ? 1 : 0);
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
