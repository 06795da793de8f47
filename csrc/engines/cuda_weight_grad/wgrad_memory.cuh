// What a block of the weight gradient works on, and where its buffers are in shared memory.
#pragma once

#include <cstdint>

#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda_weight_grad/wgrad_call.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"
#include "engines/cuda_weight_grad/wgrad_tile.cuh"

namespace convx {

// What a block multiplies: a tile, over the positions of a split-K slice.
struct WgradWork {
  WgradTile tile;
  int tile_index, slice;
  int64_t first_stage;  // of the round
  int stages;

  __device__ WgradWork(const WgradGeometry& g, const WgradCall& call, int index)
      : tile(g, index % g.tiles()), tile_index(index % g.tiles()), slice(index / g.tiles()) {
    first_stage = call.stages * slice / g.slices;
    stages = static_cast<int>(call.stages * (slice + 1) / g.slices - first_stage);
  }
};

// Addresses in shared memory.
struct WgradMemory {
  uint32_t full, empty;  // barriers, one per stage
  uint32_t gradient, input;
  uint32_t gradient_stage_bytes;  // all filter tiles and components
  uint32_t input_stage_bytes;     // one channel tile, one component
  uint32_t ring_bytes;            // the same, mirrored stages included

  __device__ WgradMemory(const WgradGeometry& g, int components, const void* memory) {
    const uint32_t start = (shared_address(memory) + 1023) / 1024 * 1024;
    full = start, empty = start + 8 * g.stages;
    gradient = start + 1024;
    gradient_stage_bytes = components * g.block_filter_tiles * kStagePositions * kGradientRowBytes;
    input = gradient + g.stages * gradient_stage_bytes;
    input_stage_bytes = kStagePositions * g.row_bytes;
    ring_bytes = (g.ring_stages + g.mirrored_stages) * input_stage_bytes;
  }

  __device__ void init_barriers(const WgradGeometry& g) const {
    for (int i = 0; i < g.stages; ++i) {
      init_barrier(full + 8 * i, 2);                   // the producers
      init_barrier(empty + 8 * i, 4 * g.consumers());  // a lane of each consumer warp
    }
    fence_barrier_init();
  }
};

}  // namespace convx
