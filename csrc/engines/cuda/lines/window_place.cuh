// Where a tile, a position and a target pixel lie on the line (window_shape.h).
#pragma once

#include "engines/cuda/lines/window_params.h"

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
template <bool kWalks>
__device__ __forceinline__ TileRange find_tiles(const WindowParams& p) {
  const int block = blockIdx.x, blocks = gridDim.x;
  if constexpr (!kWalks) return {block, p.tiles, blocks};
  const auto first_of = [&](int64_t some) { return static_cast<int>(some * p.tiles / blocks); };
  return {first_of(block), first_of(block + 1), 1};
}

template <bool kWalks = false>
__device__ __forceinline__ TilePlace locate_tile(const WindowParams& p, int tile) {
  if constexpr (kWalks) return {tile * p.tile_step, 0, 0, 0, 0, 0, 1, 0};
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

}  // namespace convx
