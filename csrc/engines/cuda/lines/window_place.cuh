// Where a tile, a position and a target pixel lie on the line (window_shape.h), and where the
// buffers lie in shared memory through which a block's warps exchange data:
//
//   source ring   [stage][component][position][lane_bytes]             producer -> MMA warps
//   filter ring   [stage][tap][half][component][64][lane_bytes]        producer -> MMA warps
//   staging       [warpgroup][64 filters][staging_pitch]               MMA warps -> store warps
//
// half: of 128 filters, if the MMA warpgroups share a window. In streaming blocks (line_stream.cuh)
// the source ring is a ring of positions, and its stages are the stretches that two warps transpose
// into it.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda/lines/window_fit.h"

namespace convx {

struct TilePlace {
  int first;  // the first window's first position
  int lead;   // positions from the start of the stage's segments to `first`
  int group;
  int filter;       // the tile's first filter, within its group
  int filter_tile;  // index over all groups
  int chunk, chunk_end;
  int split;
};

// The tile indices of a block: first, first + step, ... below end.
struct TileRange {
  int first, end, step;
};

// Streaming blocks take neighbouring tiles.
template <bool kStreams>
__device__ __forceinline__ TileRange find_tiles(const WindowParams& p) {
  const int block = blockIdx.x, blocks = gridDim.x;
  if constexpr (!kStreams) return {block, p.tiles, blocks};
  const auto first_of = [&](int64_t some) { return static_cast<int>(some * p.tiles / blocks); };
  return {first_of(block), first_of(block + 1), 1};
}

template <bool kStreams = false>
__device__ __forceinline__ TilePlace locate_tile(const WindowParams& p, int tile) {
  if constexpr (kStreams) return {tile * p.tile_step, 0, 0, 0, 0, 0, 1, 0};
  TilePlace place;
  place.split = p.by_splits.split(tile);
  place.filter_tile = p.by_filter_tiles_all.split(tile);
  place.group = p.by_filter_tiles.divide(place.filter_tile);
  place.filter =
      (place.filter_tile - place.group * p.filter_tiles) * p.filter_groups * kWindowFilters;
  place.chunk = p.by_splits.divide(place.split * p.chunks);
  place.chunk_end = p.by_splits.divide((place.split + 1) * p.chunks);
  if (p.pair_rows == 0) {
    place.first = tile * p.window_step * (p.filter_groups == 1 ? 2 : 1);
  } else {
    const int window = p.by_column_windows.split(tile);
    int pair = p.by_pairs_per_image.split(tile);  // leaves the image in tile
    const int within = p.by_pair_rows.split(pair);
    const int row = pair * (p.filter_groups == 1 ? 2 : 1) * p.pair_rows + within;
    place.first = (tile * p.rows + row) * p.pitch + window * p.window_step;
  }
  place.lead = place.first & (kLineAlignment - 1);
  if (p.whole_rows) {
    place.lead = place.first - p.by_box.divide(place.first) * p.box_rows * p.pitch;
  }
  return place;
}

// The coordinates of a position; not every position is a target pixel.
struct LinePoint {
  int image, strip, row, column;  // column within the strip
};

__device__ __forceinline__ LinePoint locate_position(const WindowParams& p, int position) {
  LinePoint point;
  point.column = p.by_pitch.split(position);
  point.row = p.by_rows.split(position);
  point.strip = p.by_strips.split(position);
  point.image = position;
  return point;
}

__device__ __forceinline__ bool is_target(const WindowParams& p, const LinePoint& point) {
  return point.column < p.strip_columns && point.row < p.target_height && point.image < p.images &&
         point.strip * p.strip_columns + point.column < p.target_width;
}

// Shared-memory addresses of a block's barriers and rings. "full" barriers tell the consumer that a
// stage was filled; "empty" barriers tell the producer that it was released.
struct WindowRings {
  uint32_t source_full, source_empty, filter_full, filter_empty;  // 8 bytes each
  uint32_t staging_full, staging_empty;                           // one per warpgroup
  uint32_t raw_full;  // raw stretches, before they are transposed
  uint32_t source, filters;
  uint32_t source_stage_bytes, filter_stage_bytes, tap_bytes;

  __device__ __forceinline__ WindowRings(const WindowParams& p, uint32_t memory, int planes) {
    source_full = memory;
    source_empty = source_full + 8 * p.source_stages;
    filter_full = source_empty + 8 * p.source_stages;
    filter_empty = filter_full + 8 * p.filter_stages;
    staging_full = filter_empty + 8 * p.filter_stages;
    staging_empty = staging_full + 8 * 2;
    raw_full = staging_empty + 8 * 2;
    source = memory + p.source_offset;
    filters = memory + p.filter_offset;
    source_stage_bytes = p.plane_bytes * planes;
    tap_bytes = p.filter_groups * planes * kWindowFilters * p.lane_bytes;
    filter_stage_bytes = p.stage_taps * tap_bytes;
  }

  __device__ __forceinline__ void init(const WindowParams& p) const {
    constexpr int kMultiplierWarps = 8;
    for (int i = 0; i < p.source_stages; ++i) {
      init_barrier(source_full + 8 * i, p.streams ? 32 : 1);
      init_barrier(source_empty + 8 * i, kMultiplierWarps);
    }
    for (int i = 0; i < p.filter_stages; ++i) {
      init_barrier(filter_full + 8 * i, 1);
      init_barrier(filter_empty + 8 * i, kMultiplierWarps);
    }
    // Every thread that wrote or read the staging arrives. One lane per warp would do, but then
    // compute-sanitizer's racecheck reports false hazards.
    for (int i = 0; i < 2; ++i) {
      init_barrier(staging_full + 8 * i, 128);
      init_barrier(staging_empty + 8 * i, 32);
    }
    for (int i = 0; i < 2 * p.raw_stretches; ++i) init_barrier(raw_full + 8 * i, 1);
    fence_barrier_init();
  }
};

}  // namespace convx
