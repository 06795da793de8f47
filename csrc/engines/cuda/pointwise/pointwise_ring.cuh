// A block's tiles, and its ring of chunks (pointwise_fit.h).
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda/pointwise/pointwise_fit.h"

namespace convx {

// The filters that stay in a block's shared memory, and its tiles of pixels: every tile_step-th
// tile from the first one. Its two consumer warpgroups alternate.
struct BlockWork {
  int group, filter;  // group, and the first filter within it
  int filters;        // tile_filters, or fewer in the last filter tile
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

// The next chunk of a block: a tile, and a chunk of it.
struct ChunkCursor {
  int tile, chunk = 0;

  __device__ __forceinline__ explicit ChunkCursor(const BlockWork& work) : tile(work.first_tile) {}

  __device__ __forceinline__ bool is_done(const PointwiseParams& p) const {
    return tile >= p.tiles;
  }
  __device__ __forceinline__ void advance(const PointwiseParams& p, const BlockWork& work) {
    if (++chunk < p.chunks) return;
    chunk = 0;
    tile += work.tile_step;
  }
};

// Coordinates of a target pixel. Pixels of all images are numbered consecutively.
struct TargetPixel {
  int image, row, column;

  __device__ __forceinline__ TargetPixel(const PointwiseParams& p, int pixel) {
    image = p.by_plane.divide(pixel);
    row = pixel - image * p.plane;
    column = p.by_target_width.split(row);
  }
};

// The one or two images that a tile's pixels belong to: [first, next) and [next, end). A tile has
// no more pixels than an image, so there is no third.
struct TwoImages {
  int image, first, next, end;

  __device__ __forceinline__ TwoImages(const PointwiseParams& p, int first_pixel, int pixels)
      : image(p.by_plane.divide(first_pixel)),
        first(first_pixel),
        end(min(first_pixel + pixels, p.pixels)) {
    next = min((image + 1) * p.plane, end);
  }
  // Element offset of the first pixel in the first or second image, for contiguous planes.
  __device__ __forceinline__ int64_t find(const PointwiseParams& p, bool second,
                                          int64_t image_step) const {
    return second ? (image + 1) * image_step : image * image_step + (first - image * p.plane);
  }
};

// Shared-memory addresses. Chunk q of a block lies in stage q % stages. full: the producers have
// written it; empty: the warpgroup that computes its tile has multiplied it by all filters.
struct PointwiseRing {
  uint32_t full, empty;  // mbarriers, 8 bytes each
  uint32_t raw_full;     // mbarriers, [producer warp][raw stage]
  uint32_t chunks;       // [stage][component][channel / 8][pixel / 64][channel % 8][128 bytes]
  uint32_t raw;          // [producer warp][raw stage][rows of its channels]

  __device__ __forceinline__ PointwiseRing(const PointwiseParams& p, uint32_t memory)
      : full(memory),
        empty(memory + 8 * kMaxPointwiseStages),
        raw_full(memory + 16 * kMaxPointwiseStages),
        chunks(memory + p.ring_offset),
        raw(memory + p.raw_offset) {}

  __device__ __forceinline__ void init(const PointwiseParams& p) const {
    for (int i = 0; i < kPointwiseLoaders / 32 * p.raw_stages; ++i)
      init_barrier(raw_full + 8 * i, 1);
    for (int i = 0; i < p.stages; ++i) {
      init_barrier(full + 8 * i, kPointwiseLoaders / 32);
      init_barrier(empty + 8 * i, kPointwiseWarps / 2);
    }
    fence_barrier_init();
  }
};

}  // namespace convx
