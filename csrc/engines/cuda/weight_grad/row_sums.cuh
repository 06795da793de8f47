// Partial sums of the row kernels: where a warpgroup's accumulators go in the workspace.
#pragma once

#include "device/wgmma.cuh"
#include "engines/cuda/weight_grad/rows_memory.cuh"

namespace convx {

// Which of a block's consumers a warpgroup is. Warpgroups are [filter tile][channel set][part],
// where each of `parts` warpgroups has its own tap groups.
struct RowConsumerIndex {
  int filter_tile, channel_set, part;

  __device__ __forceinline__ RowConsumerIndex(const WgradGeometry& g, int warpgroup, int parts) {
    const int pair = warpgroup / parts;
    part = warpgroup - pair * parts;
    filter_tile = pair / g.row_tiles.channel_sets;
    channel_set = pair - filter_tile * g.row_tiles.channel_sets;
  }
};

// This thread's share of the partial sums of a tap group, kColumns columns of 64 filters; further
// tap groups follow. tap_group: of the block.
template <int kColumns>
__device__ __forceinline__ float* find_partials(const WgradGeometry& g, const WgradCall& call,
                                                const WgradWork& work,
                                                const RowConsumerIndex& index, int tap_group) {
  const int tile = work.tile_index + index.channel_set * g.group_blocks;
  const int64_t consumer = (int64_t{work.slice} * g.tiles() + tile) * g.consumers() +
                           index.filter_tile * g.block_tap_groups + tap_group;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int row = thread / 32 * 16 + thread % 32 / 4;
  return call.partials + (consumer * kTileFilters + row) * kColumns + thread % 4 * 2;
}

// Stores the accumulators of a tap group, or adds them to what is there. Not in place, as
// wgrad_consumer.cuh does: further MMAs may follow, and the compiler would serialize them (C7515).
template <int kColumns>
__device__ __forceinline__ void store_partials(const WgmmaSums<kColumns>& sums, float* partials,
                                               bool adds) {
#pragma unroll
  for (int j = 0; j < kColumns / 4; ++j) {
    auto* const to = reinterpret_cast<float2*>(partials + j % 2 * 8 * kColumns + j / 2 * 8);
    float2 value{sums.value[2 * j], sums.value[2 * j + 1]};
    if (adds) value.x += to->x, value.y += to->y;
    *to = value;
  }
}

}  // namespace convx
