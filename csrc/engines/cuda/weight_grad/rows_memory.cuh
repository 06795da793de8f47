// What a block of the kernels that read rows works on, where the row kernel's buffers are in shared
// memory, and where partial sums go in the workspace.
#pragma once

#include <cstdint>

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_work.cuh"

namespace convx {

// The tile of a block's first channel set, and its slice. Those of the other sets follow, with the
// same filters and taps.
__device__ __forceinline__ WgradIndex find_first_set(const WgradGeometry& g, int block) {
  WgradIndex index(g, block);
  int set_block = index.tile;
  const int group_block = g.by_group_blocks.split(set_block);
  index.tile = set_block * g.row_tiles.channel_sets * g.group_blocks + group_block;
  return index;
}

// The output rows of a run.
struct RowRun {
  int image, first_column, first_row, rows;

  __device__ RowRun(const WgradGeometry& g, int index) : image(index) {
    first_column = g.row_tiles.by_segments.split(image) * kStepPixels;
    first_row = g.row_tiles.by_run_bands.split(image) * g.row_tiles.run_rows;
    rows = min(g.row_tiles.run_rows, g.out_height - first_row);
  }
};

// The input rows that a block reads of a run: those of its tap groups' kernel rows.
struct RowWindow {
  int first_r;  // the first kernel row
  int span;     // input rows that a step needs
  int advance;  // input rows that the next step needs anew

  __device__ RowWindow(const WgradGeometry& g, const WgradTile& tile) {
    first_r = g.groups[tile.first_group].r;
    span = (g.groups[tile.last_group - 1].r - first_r) * g.dilation_h + 1;
    advance = min(g.stride_h, span);
  }

  __device__ int count_rows(const RowRun& run) const { return (run.rows - 1) * advance + span; }

  // The input row that is the index-th of a run; it may lie outside of the image.
  __device__ int find_row(const WgradGeometry& g, const RowRun& run, int index) const {
    int step = run.first_row;
    if (advance < g.stride_h) step += index / span, index %= span;  // rows between are skipped
    return step * g.stride_h + first_r * g.dilation_h - g.pad_top + index;
  }
};

// Addresses in shared memory, each barrier array followed by that of the opposite direction.
struct RowsMemory {
  uint32_t gradient_full, gradient_empty, input_full, input_empty, row_full, row_empty;
  uint32_t ring, gradient, input;
  uint32_t slot_bytes, component_bytes;  // of the ring
  uint32_t gradient_stage_bytes, input_stage_bytes;

  __device__ RowsMemory(const WgradGeometry& g, int components, int element_bytes,
                        const void* memory) {
    const RowTiles& t = g.row_tiles;
    const uint32_t start = align_start(memory);
    gradient_full = start, gradient_empty = gradient_full + 8 * g.stages;
    input_full = gradient_empty + 8 * g.stages, input_empty = input_full + 8 * t.input_stages;
    row_full = input_empty + 8 * t.input_stages, row_empty = row_full + 8 * t.ring_rows;
    ring = start + 1024;
    slot_bytes = t.slot_bytes(g.kernel_columns);
    component_bytes = t.ring_rows * slot_bytes;
    gradient = ring + components * component_bytes;
    gradient_stage_bytes = g.block_filter_tiles * kTileFilters * gradient_pitch(element_bytes);
    input = gradient + g.stages * gradient_stage_bytes;
    input_stage_bytes = t.block_channels * t.input_pitch;
  }

  __device__ void init_barriers(const WgradGeometry& g, int warpgroups) const {
    for (int i = 0; i < g.stages; ++i) {
      init_barrier(gradient_full + 8 * i, 32 * kRowLoaderWarps);
      init_barrier(gradient_empty + 8 * i, 4 * warpgroups);
    }
    for (int i = 0; i < g.row_tiles.input_stages; ++i) {
      init_barrier(input_full + 8 * i, 32 * kRowLoaderWarps);
      init_barrier(input_empty + 8 * i, kRowBuilderWarps);
    }
    for (int i = 0; i < g.row_tiles.ring_rows; ++i) {
      init_barrier(row_full + 8 * i, kRowBuilderWarps);
      init_barrier(row_empty + 8 * i, 4 * warpgroups);
    }
    fence_barrier_init();
  }
};

// Which of a block's consumers a warpgroup is. Warpgroups are [filter tile][channel set][tap set],
// where each of `tap_sets` warpgroups has its own tap groups.
struct RowConsumerIndex {
  int filter_tile, channel_set, tap_set;

  __device__ __forceinline__ RowConsumerIndex(const WgradGeometry& g, int warpgroup, int tap_sets) {
    const int pair = warpgroup / tap_sets;
    tap_set = warpgroup - pair * tap_sets;
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
