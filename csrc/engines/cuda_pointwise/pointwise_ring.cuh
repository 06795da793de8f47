// A block's share of the work, and its ring of chunks (pointwise_shape.h).
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda_pointwise/pointwise_params.h"

namespace convx {

// The filters a block keeps, and its tiles of pixels: every tile_step-th from the first. Its two
// warpgroups take them in turn.
struct BlockWork {
  int group, filter;  // the first filter, within its group
  int filters;        // that there are
  int first_tile, tile_step;

  __device__ __forceinline__ explicit BlockWork(const PointwiseParams& p) {
    const int block = static_cast<int>(blockIdx.x);
    const int filter_tile = block % p.all_filter_tiles;
    group = filter_tile / p.filter_tiles;
    filter = (filter_tile - group * p.filter_tiles) * p.tile_filters;
    filters = min(p.tile_filters, p.group_targets - filter);
    first_tile = block / p.all_filter_tiles;
    tile_step = static_cast<int>(gridDim.x) / p.all_filter_tiles;
  }
};

// Place of a pixel of the line.
struct TargetPixel {
  int image, row, column;

  __device__ __forceinline__ TargetPixel(const PointwiseParams& p, int pixel) {
    image = p.by_plane.divide(pixel);
    row = pixel - image * p.plane;
    column = p.by_target_width.split(row);
  }
};

// Shared-memory addresses. Chunk q of a block lies in stage q % stages; full: the loaders have
// written it; empty: the warpgroup that its tile belongs to has multiplied it by all filters.
struct PointwiseRing {
  uint32_t full, empty;  // barriers, 8 bytes each
  uint32_t chunks;       // [stage][part][channel / 8][pixel / 64][channel % 8][128 bytes]

  __device__ __forceinline__ PointwiseRing(const PointwiseParams& p, uint32_t memory)
      : full(memory), empty(memory + 8 * kMaxPointwiseStages), chunks(memory + p.ring_offset) {}

  __device__ __forceinline__ void init(const PointwiseParams& p) const {
    for (int i = 0; i < p.stages; ++i) {
      init_barrier(full + 8 * i, kPointwiseLoaders / 32);
      init_barrier(empty + 8 * i, kPointwiseWarps / 2);
    }
    fence_barrier_init();
  }
};

}  // namespace convx
