// The main loops of blocks that take tiles from anywhere (Pace::kTiles).
//
//   copy_lines      source producer, one thread: bulk copies of line segments
//   copy_boxes      the same, one warp, for 16-bit tensors in channels_last: TMA reads tiles
//   directly
//                   from the source, swizzles them, and writes zeros for positions outside of the
//                   image, stage [segment][box][row][column][lane_bytes]
//   multiply_tiles  MMA warpgroups
//   store_tiles     store warps
//
// A box has the channels of one chunk. For small images it has whole rows of the line: an image is
// a whole number of boxes, and a tile starts anywhere in its first box. For large images it is the
// part of one row that a window and its taps reach.
#pragma once

#include "device/async_copy.cuh"
#include "device/mbarrier.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/lines/stage_accumulators.cuh"
#include "engines/cuda/lines/staging.cuh"
#include "engines/cuda/lines/store_staged.cuh"
#include "engines/cuda/lines/window_multiply.cuh"
#include "kernels/fill_stages.cuh"
#include "kernels/finish.cuh"

namespace convx {

// The source producer, one thread: fills the source ring with the segments of each chunk, one bulk
// copy per segment and component.
__device__ __forceinline__ void copy_lines(const WindowParams& p, const WindowRings& rings,
                                           int planes) {
  const uint32_t segment_bytes = p.segment_length * p.lane_bytes;
  const int64_t line_bytes = p.line_positions * p.lane_bytes;
  RingCursor cursor;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const TilePlace tile = locate_tile(p, index);
    const int first = tile.first & -kLineAlignment;
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      const char* plane =
          static_cast<const char*>(p.lines_memory) +
          (static_cast<int64_t>(tile.group) * p.chunks + chunk) * planes * p.lines * line_bytes;
      const uint32_t full = rings.source_full + 8 * cursor.slot;
      uint32_t stage = rings.source + cursor.slot * rings.source_stage_bytes;
      wait_barrier(rings.source_empty + 8 * cursor.slot, cursor.parity ^ 1);
      arrive_expecting(full, planes * p.segments * segment_bytes);
      for (int i = 0; i < planes; ++i, stage += p.plane_bytes, plane += p.lines * line_bytes) {
        for (int s = 0; s < p.segments; ++s) {
          const int64_t position = first + p.segment[s].shift;
          bulk_copy(stage + s * segment_bytes,
                    plane + p.segment[s].line * line_bytes + position * p.lane_bytes, segment_bytes,
                    full);
        }
      }
      cursor.advance(p.source_stages);
    }
  }
}

// Source coordinates of a box's first value.
struct SourceBox {
  int channel, column, row, image;
};

// Loads a box with all lanes of a warp, where the source's alignment allows no tensor map.
__device__ __forceinline__ void gather_box(const WindowParams& p, const SourceBox& box,
                                           uint32_t to) {
  const auto* const source =
      static_cast<const uint16_t*>(p.source) + box.image * p.source_n + box.channel;
  const int units = p.lane_bytes / 16;  // 16-byte units of a position
  const int left = p.groups * p.group_sources - box.channel;
  for (int i = threadIdx.x & 31; i < p.box_rows * p.box_columns * units; i += 32) {
    const int unit = i & (units - 1), position = i / units;
    const int row = box.row + position / p.box_columns * p.source_step_h;
    const int column = box.column + position % p.box_columns * p.source_step_w;
    const bool inside = box.image < p.images &&
                        static_cast<unsigned>(row) < static_cast<unsigned>(p.source_height) &&
                        static_cast<unsigned>(column) < static_cast<unsigned>(p.source_width);
    gather_unit(source + row * p.source_h + column * p.source_w + 8 * unit,
                inside ? left - 8 * unit : 0, swizzle(to + 16 * i, p.lane_bytes));
  }
}

// Called by one warp: fills the source ring.
__device__ __forceinline__ void copy_boxes(const WindowParams& p, const WindowRings& rings,
                                           const void* map) {
  const uint32_t box_bytes = p.box_rows * p.box_columns * p.lane_bytes;
  const uint32_t stage_bytes = p.segments * p.boxes * box_bytes;
  RingCursor cursor;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const TilePlace tile = locate_tile(p, index);
    const LinePoint first = locate_position(p, tile.first - (p.whole_rows ? tile.lead : 0));
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      const uint32_t full = rings.source_full + 8 * cursor.slot;
      uint32_t to = rings.source + cursor.slot * rings.source_stage_bytes;
      wait_barrier(rings.source_empty + 8 * cursor.slot, cursor.parity ^ 1);
      if (p.wide_channels && elect_lane()) arrive_expecting(full, stage_bytes);
      SourceBox box;
      box.channel = tile.group * p.group_sources + chunk * p.chunk_channels;
      for (int s = 0; s < p.segments; ++s) {
        const WindowSegment& segment = p.segment[s];
        box.column = (first.column + p.column_base) * p.source_step_w + segment.column_phase;
        box.image = first.image;
        int row = first.row + segment.rows_down;
        for (int i = 0; i < p.boxes; ++i, row += p.box_rows, to += box_bytes) {
          if (row >= p.rows) row -= p.rows, ++box.image;
          box.row = (row + p.row_base) * p.source_step_h + segment.row_phase;
          if (!p.wide_channels) {
            gather_box(p, box, to);
          } else if (elect_lane()) {
            box_copy(to, map, box.channel, box.column, box.row, box.image, full);
          }
        }
      }
      if (!p.wide_channels) {
        fence_async_proxy();
        __syncwarp();
        if (elect_lane()) arrive(full);
      }
      cursor.advance(p.source_stages);
    }
  }
}

// Calls visit(target, bias) with the place that the tile's results go to, and the bias to add.
template <typename Element, typename Visit>
__device__ __forceinline__ void visit_target(const WindowParams& p, const TilePlace& tile,
                                             const Visit& visit) {
  const Element* bias = static_cast<const Element*>(p.bias);
  if (bias != nullptr) bias += tile.group * p.group_targets;
  const int64_t plane = static_cast<int64_t>(p.target_height) * p.target_width;
  const StoreTarget<float> slice{p.partials + tile.split * p.partial_stride,
                                 plane * p.groups * p.group_targets, plane, p.target_width, 1};
  visit_whole_or_slice(p.partials != nullptr, find_whole_target<Element>(p), slice, bias, visit);
}

// Computes the block's tiles and stages their accumulators. Called by the two MMA warpgroups.
// must_recompute[warpgroup] is set if some staged accumulators must be recomputed.
template <TensorMath kMath, int kColumns>
__device__ __forceinline__ void multiply_tiles(const WindowParams& p, const WindowRings& rings,
                                               const int* taps, char* memory,
                                               volatile int* must_recompute) {
  using Multiplier = WindowMultiplier<kMath, kColumns, StageReader>;
  using Element = typename TensorTypes<kMath>::Element;
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  StagingWriter buffer(rings, warpgroup);
  const TileRange tiles = find_tiles<false>(p);
  Multiplier multiplier(p, rings, taps, warpgroup, tiles);
  TilePlace next = locate_tile(p, tiles.first);
  for (int index = tiles.first; index < tiles.end; index += tiles.step) {
    const TilePlace tile = next;
    WgmmaSums<kColumns> sums;
    typename Multiplier::Chains chains;
    const bool more = index + tiles.step < tiles.end;
    multiplier.multiply(tile, chains, sums, more);
    // Work between multiply and finish overlaps with the last MMAs.
    next = locate_tile(p, index + tiles.step);
    const TileShare share(p, tile, warpgroup);
    const auto stage = [&]<typename Out>(const StoreTarget<Out>& target, const Element* bias) {
      AccumulatorStager<kMath, kColumns, Pace::kTiles, Out, Element> stager(
          p, target, tile.group, share.filter, bias,
          find_staging<Out, kColumns, Pace::kTiles>(p, memory, warpgroup));
      stager.start_window(share.window);
      multiplier.finish(chains, sums);
      stager.finish_early(sums.value);
      stager.visit_parts([&]<int kPart>() {
        buffer.wait();
        if (stager.template stage<kPart>(sums.value)) must_recompute[warpgroup] = 1;
        buffer.hand_over();
      });
    };
    visit_target<Element>(p, tile, stage);
  }
}

// Stores the results that one warpgroup has staged. Called by one warp per warpgroup. target_map:
// for stores by TMA.
template <TensorMath kMath, int kColumns>
__device__ __forceinline__ void store_tiles(const WindowParams& p, const WindowRings& rings,
                                            char* memory, const void* target_map,
                                            volatile int* must_recompute, int warpgroup) {
  using Element = typename TensorTypes<kMath>::Element;
  constexpr bool kExact = kMath == TensorMath::kIeee;
  StagingReader buffer(rings, warpgroup);
  const auto wait = [&] {
    buffer.wait();
    return kExact && must_recompute[warpgroup] != 0;
  };
  const auto release = [&] {
    __syncwarp();
    if (kExact && (threadIdx.x & 31) == 0) must_recompute[warpgroup] = 0;
    buffer.release();
  };
  const TileRange tiles = find_tiles<false>(p);
  for (int index = tiles.first; index < tiles.end; index += tiles.step) {
    const TilePlace tile = locate_tile(p, index);
    const TileShare share(p, tile, warpgroup);
    visit_target<Element>(
        p, tile, [&]<typename Out>(const StoreTarget<Out>& target, const Element* bias) {
          const StagedStorer<kMath, kColumns, Pace::kTiles, Out, Element> storer(
              p, target, tile, share.window, share.filter, bias,
              find_staging<Out, kColumns, Pace::kTiles>(p, memory, warpgroup), target_map);
#pragma unroll 1
          for (int part = 0; part < kParts<Out, kColumns>; ++part) {
            storer.store(part, wait);
            release();
          }
        });
  }
  if (elect_lane()) wait_bulk_stores();
}

}  // namespace convx
