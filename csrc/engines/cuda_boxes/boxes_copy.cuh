// One warp that keeps the ring full.
#pragma once

#include "device/box_copy.cuh"
#include "device/shared_memory.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda_boxes/boxes_ring.cuh"

namespace convx {

// Where a box of the source starts; steps to its other pixels are the source's.
struct SourceCorner {
  int word;  // of 16 bits, of the channels
  int column, row, image;
};

// By all lanes, where the source starts at an odd address and has no map. kWords: of 16 bits, that
// a value has.
template <int kWords>
__device__ __forceinline__ void gather_pixels(const BoxesParams& p, const SourceCorner& box,
                                              uint32_t to) {
  const auto* const source = static_cast<const uint16_t*>(p.source);
  const int left = p.group_sources * kWords - box.word;
  const int pixels = p.box_columns * p.box_rows * p.box_images;
  for (int i = threadIdx.x & 31; i < pixels * (kBoxLineBytes / 16); i += 32) {
    const int unit = i % (kBoxLineBytes / 16);
    int image = i / (kBoxLineBytes / 16);
    const int column = box.column + p.by_box_columns.split(image) * p.source_step_w;
    const int row = box.row + p.by_box_rows.split(image) * p.source_step_h;
    image += box.image;
    const bool inside = image < p.images &&
                        static_cast<unsigned>(row) < static_cast<unsigned>(p.source_height) &&
                        static_cast<unsigned>(column) < static_cast<unsigned>(p.source_width);
    const uint16_t* const from =
        source + kWords * (image * p.source_n + row * p.source_h + column * p.source_w) + box.word +
        8 * unit;
    uint32_t words[4] = {};
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      if (!inside || 8 * unit + w >= left) continue;
      words[w / 2] |= static_cast<uint32_t>(from[w]) << w % 2 * 16;
    }
    store_16_bytes(swizzle_line(to + 16 * i), words);
  }
}

// Boxes of the filters that a tile has: what they would have behind the last one is not copied, as
// lines outside of a tensor take the copy engine longer than others.
template <int kFilters>
__device__ __forceinline__ int count_filter_boxes(const BoxesParams& p, int first_filter) {
  const int filters = min(kFilters, p.group_targets - first_filter);
  return (filters + kBoxFilters - 1) / kBoxFilters;
}

// Of a tap and a chunk; called by one lane.
struct FilterCopy {
  const void* map;
  int filter, boxes;

  __device__ __forceinline__ uint32_t bytes() const {
    return boxes * (kBoxFilters * kBoxLineBytes);
  }
  __device__ __forceinline__ void start(uint32_t to, int word, int r, int s,
                                        uint32_t barrier) const {
#pragma unroll 1
    for (int i = 0; i < boxes; ++i) {
      box_copy(to + i * (kBoxFilters * kBoxLineBytes), map, word, s, r, filter + i * kBoxFilters,
               barrier);
    }
  }
};

// The block's filters, which are those of its first tile.
template <int kFilters>
__device__ __forceinline__ void copy_resident(const BoxesParams& p, const BoxesRing& ring,
                                              const void* map) {
  if (!elect_lane()) return;
  const int filter = locate_tile(p, blockIdx.x, kFilters).filter;
  const FilterCopy filters{map, filter, count_filter_boxes<kFilters>(p, filter)};
  arrive_expecting(ring.filters_full, p.tap_rows * p.tap_columns * p.chunks * filters.bytes());
  uint32_t to = ring.resident;
#pragma unroll 1
  for (int r = 0; r < p.tap_rows; ++r) {
#pragma unroll 1
    for (int s = 0; s < p.tap_columns; ++s) {
#pragma unroll 1
      for (int chunk = 0; chunk < p.chunks; ++chunk, to += kFilters * kBoxLineBytes) {
        filters.start(to, chunk * kBoxWords, r, s, ring.filters_full);
      }
    }
  }
}

template <TensorMath kMath, int kFilters>
__device__ __forceinline__ void copy_boxes(const BoxesParams& p, const BoxesRing& ring,
                                           const void* source_map, const void* filter_map) {
  if (p.resident) copy_resident<kFilters>(p, ring, filter_map);
  const uint32_t pixel_bytes =
      p.boxed_source ? p.box_columns * p.box_rows * p.box_images * kBoxLineBytes : 0;
  RingCursor cursor;
#pragma unroll 1
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const BoxTile tile = locate_tile(p, index, kFilters);
    const FilterCopy filters{filter_map, tile.filter,
                             p.resident ? 0 : count_filter_boxes<kFilters>(p, tile.filter)};
    const int tile_column = tile.column * p.source_step_w + p.offset_w0;
    int row = tile.row * p.source_step_h + p.offset_h0;
#pragma unroll 1
    for (int r = 0; r < p.tap_rows; ++r, row += p.offset_h_step) {
      int column = tile_column;
#pragma unroll 1
      for (int s = 0; s < p.tap_columns; ++s, column += p.offset_w_step) {
#pragma unroll 1
        for (int word = 0; word < p.chunks * kBoxWords; word += kBoxWords) {
          const uint32_t full = ring.full + 8 * cursor.slot;
          const uint32_t stage = ring.first + cursor.slot * p.stage_bytes;
          wait_barrier(ring.empty + 8 * cursor.slot, cursor.parity ^ 1);
          if (!p.boxed_source) {
            gather_pixels<operand_bytes(kMath) / 2>(p, {word, column, row, tile.image}, stage);
            fence_async_proxy();
          }
          __syncwarp();
          if (elect_lane()) {
            arrive_expecting(full, pixel_bytes + filters.bytes());
            if (p.boxed_source) {
              box_copy(stage, source_map, word, column, row, tile.image, full);
            }
            filters.start(stage + kBoxPixelBytes, word, r, s, full);
          }
          cursor.advance(p.stages);
        }
      }
    }
  }
}

}  // namespace convx
