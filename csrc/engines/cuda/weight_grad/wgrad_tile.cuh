// The part of the weight gradient that one block computes.
#pragma once

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

}  // namespace convx
