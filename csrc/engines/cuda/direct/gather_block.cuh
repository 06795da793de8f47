// The tile of a block of the gather kernel, and the order in which it reduces.
#pragma once

#include "engines/cuda/direct/gather_geometry.h"

namespace convx {

template <GatherConfig kConfig>
struct GatherTile {
  static constexpr int kPerThread = kConfig.per_thread;
  static constexpr int kLaneGroups = kConfig.lane_groups;
  static constexpr int kWarpsK = kConfig.warps_k;
  static constexpr int kFilters = kConfig.filters();
  static constexpr int kWarpStrips = 32 / kLaneGroups;
  static constexpr int kThreads = kConfig.threads();
};

// The position of the block's tile.
struct GatherBlock {
  const AxisParams* row;
  const AxisParams* column;
  int filter_tile, group;
  int first_strip;      // counted through all strips of a lattice row, lanes fastest
  int row_lane, row_b;  // lattice rows of the tile: (row_b + i) * lanes + row_lane
  int first_image;
  bool empty;  // nothing to compute: the grid is sized for the largest phase
};

struct GatherChunk {
  int channel, channels;
  int row_tap, row_taps;
  int column_tap, column_taps;
};

__device__ inline GatherBlock locate_block(const GatherParams& p) {
  GatherBlock block;
  unsigned index = blockIdx.x;
  block.filter_tile = index % p.filter_tiles;
  index /= p.filter_tiles;
  block.group = index % p.groups;
  index /= p.groups;
  const int strip_tile = index % p.strip_tiles;
  index /= p.strip_tiles;
  const int row_tile = index % p.row_tiles;
  index /= p.row_tiles;
  block.column = &p.column[index % p.column_phases];
  index /= p.column_phases;
  block.row = &p.row[index % p.row_phases];
  index /= p.row_phases;
  block.first_image = p.first_image + static_cast<int>(index) * p.tile_images;

  block.first_strip = strip_tile * p.strips;
  block.row_lane = row_tile % block.row->lanes;
  block.row_b = row_tile / block.row->lanes * p.rows;
  const int first_b = block.first_strip / block.column->lanes * kStrip;
  block.empty = block.row_b * block.row->lanes + block.row_lane >= block.row->count ||
                first_b * block.column->lanes >= block.column->count;
  return block;
}

__device__ inline GatherChunk first_chunk(const GatherParams& p, const GatherBlock& block) {
  return {0, min(p.channels, p.source_channels),    0, min(p.row_taps, block.row->taps),
          0, min(p.column_taps, block.column->taps)};
}

// Advances channels first, then column taps, then row taps. Returns false after the last chunk.
__device__ inline bool advance_chunk(const GatherParams& p, const GatherBlock& block,
                                     GatherChunk& chunk) {
  chunk.channel += p.channels;
  if (chunk.channel >= p.source_channels) {
    chunk.channel = 0;
    chunk.column_tap += p.column_taps;
    if (chunk.column_tap >= block.column->taps) {
      chunk.column_tap = 0;
      chunk.row_tap += p.row_taps;
      if (chunk.row_tap >= block.row->taps) return false;
    }
  }
  chunk.channels = min(p.channels, p.source_channels - chunk.channel);
  chunk.column_taps = min(p.column_taps, block.column->taps - chunk.column_tap);
  chunk.row_taps = min(p.row_taps, block.row->taps - chunk.row_tap);
  return true;
}

}  // namespace convx
