// The source producer for 16-bit tensors in channels_last: TMA reads tiles directly from the
// source, swizzles them, and writes zeros for positions outside of the image.
//
//   stage [segment][box][row][column][lane_bytes]
//
// A box has the channels of one chunk. For small images it has whole rows of the line: an image is
// a whole number of boxes, and a tile starts anywhere in its first box. For large images it is the
// part of one row that a window and its taps reach.
#pragma once

#include "device/box_copy.cuh"
#include "device/mbarrier.cuh"
#include "device/swizzle.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/lines/window_place.cuh"
#include "engines/cuda/lines/window_rings.cuh"
#include "kernels/gather_unit.cuh"

namespace convx {

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

}  // namespace convx
