// The producer: one warp that issues TMA, or several warps that copy pixels themselves (spans).
//
// A Source class copies the pixels of one tile:
//     kWarps          producer warps
//     kNamedBarriers  consumers release stages at named barriers instead of mbarriers
//     bytes, start    TMA: bytes of a stage, and the copies, issued by one lane
//     gather          the same stage written by all lanes, for sources that are not 16-byte aligned
#pragma once

#include "device/async_copy.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/boxes/boxes_ring.cuh"
#include "kernels/fill_stages.cuh"

namespace convx {

// channels_last: the pixels of a piece and a chunk of channels are one TMA box, or, in flat tiles,
// one TMA copy in im2col mode.
template <TensorMath kMath, int kPieces>
class PixelCopy {
  static constexpr int kWords = operand_bytes(kMath) / 2;  // 16-bit words per value
  static constexpr int kUnits = kBoxLineBytes / 16;
  static constexpr bool kRounds = kMath == TensorMath::kTf32;

 public:
  static constexpr int kWarps = 1;
  static constexpr bool kNamedBarriers = false;

  __device__ __forceinline__ PixelCopy(const BoxesParams& p, const void* map, int index)
      : p_(p),
        map_(map),
        phase_(p.phases[find_phase(p, p.by_filter_tiles.divide(index))]),
        index_(index) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const BoxTile tile = locate_tile(p, index, piece);
      first_[piece] = p.tiles_are_flat ? find_flat_source(find_flat_pixel(tile))
                                       : find_source(tile.column, tile.row, tile.image);
    }
  }

  __device__ __forceinline__ uint32_t bytes(int) const {
    return count_pieces() * count_pixels() * kBoxLineBytes;
  }

  // Issues the copies of tap (r, s) and a chunk of channels; called by one lane.
  __device__ __forceinline__ void start(uint32_t to, int chunk, int r, int s,
                                        uint32_t barrier) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece, to += kBoxPixels * kBoxLineBytes) {
      const Pixel& first = first_[piece];
      if (piece > 0 && first.image >= p_.source_images) return;
      const int channel = chunk * box_chunk(kMath);
      const int columns = s * phase_.offset_w_step, rows = r * phase_.offset_h_step;
      if (p_.tiles_are_flat) {
        pixel_copy(to, map_, channel, first.column, first.row, first.image, columns, rows, barrier);
      } else {
        box_copy(to, map_, channel, first.column + columns, first.row + rows, first.image, barrier);
      }
    }
  }
  // Writes the same stage without TMA; called by all lanes.
  __device__ __forceinline__ void gather(uint32_t to, int chunk, int r, int s) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece, to += kBoxPixels * kBoxLineBytes) {
      gather_piece(to, chunk, r, s, piece);
    }
  }

 private:
  struct Pixel {
    int column, row, image;
  };

  // The source pixel that the first tap reads for a target pixel.
  __device__ __forceinline__ Pixel find_source(int column, int row, int image) const {
    return {column * p_.source_step_w + phase_.offset_w0, row * p_.source_step_h + phase_.offset_h0,
            image};
  }
  // The source pixel that the first tap reads for the target pixel of this number in all images.
  __device__ __forceinline__ Pixel find_flat_source(int pixel) const {
    const int column = p_.by_target_columns.split(pixel);
    const int row = p_.by_target_rows.split(pixel);
    return find_source(column, row, pixel);
  }
  // Number of a flat tile's first pixel. In a missing piece, which has image 1 of the target, it is
  // that of the pixel behind the last one.
  __device__ __forceinline__ int find_flat_pixel(const BoxTile& tile) const {
    return tile.column + tile.image * phase_.target_width;
  }

  __device__ __forceinline__ int count_pixels() const {
    return p_.box_columns * p_.box_rows * p_.box_images;
  }
  // The last tile may have one piece only. What its stages hold instead of the other is multiplied,
  // but not stored.
  __device__ __forceinline__ int count_pieces() const {
    return kPieces > 1 && first_[kPieces - 1].image < p_.source_images ? kPieces : 1;
  }

  __device__ __forceinline__ void gather_piece(uint32_t to, int chunk, int r, int s,
                                               int piece) const {
    const auto* const source = static_cast<const uint16_t*>(p_.source);
    const int left = p_.group_sources * kWords - chunk * kBoxWords;
    const Pixel& first = first_[piece];
    const int first_flat = find_flat_pixel(locate_tile(p_, index_, piece));
    const int pixels = count_pixels();
    for (int i = threadIdx.x & 31; i < pixels * kUnits; i += 32) {
      const int unit = i % kUnits;
      int image = i / kUnits, column, row;
      if (p_.tiles_are_flat) {
        const Pixel pixel = find_flat_source(first_flat + image);
        column = pixel.column, row = pixel.row, image = pixel.image;
      } else {
        column = first.column + p_.by_box_columns.split(image) * p_.source_step_w;
        row = first.row + p_.by_box_rows.split(image) * p_.source_step_h;
        image += first.image;
      }
      column += s * phase_.offset_w_step, row += r * phase_.offset_h_step;
      const bool inside = image < p_.source_images &&
                          static_cast<unsigned>(row) < static_cast<unsigned>(p_.source_height) &&
                          static_cast<unsigned>(column) < static_cast<unsigned>(p_.source_width);
      gather_unit<kRounds>(
          source + kWords * (image * p_.source_n + row * p_.source_h + column * p_.source_w) +
              chunk * kBoxWords + 8 * unit,
          inside ? left - 8 * unit : 0, swizzle_line(to + 16 * i));
    }
  }

  const BoxesParams& p_;
  const void* const map_;
  const BoxPhaseParams& phase_;
  const int index_;       // the tile's
  Pixel first_[kPieces];  // the source pixels that the first tap reads
};

// NCHW, planes of whole 16-byte units: one TMA box per line of the tile, [channel][128 bytes of
// pixels].
template <TensorMath kMath>
class LineCopy {
  static constexpr int kWords = operand_bytes(kMath) / 2;
  static constexpr int kUnits = kBoxLineBytes / 16;
  static constexpr int kChunk = box_chunk(kMath);
  static constexpr bool kRounds = kMath == TensorMath::kTf32;

 public:
  static constexpr int kWarps = 1;
  static constexpr bool kNamedBarriers = false;

  __device__ __forceinline__ LineCopy(const BoxesParams& p, const void* map, int index)
      : p_(p),
        map_(map),
        first_(locate_lines<kMath>(p, index)),
        count_(count_lines<kMath>(p, first_)) {}

  __device__ __forceinline__ uint32_t bytes(int) const { return count_ * (kChunk * kBoxLineBytes); }

  __device__ __forceinline__ void start(uint32_t to, int chunk, int, int, uint32_t barrier) const {
#pragma unroll 1
    for (int i = 0; i < count_; ++i, to += kChunk * kBoxLineBytes) {
      const PlaneLine line(p_, first_ + i);
      box_copy(to, map_, line.index * line_pixels(kMath), chunk * kChunk, line.image, 0, barrier);
    }
  }
  __device__ __forceinline__ void gather(uint32_t to, int chunk, int, int) const {
    const auto* const source = static_cast<const uint16_t*>(p_.source);
    for (int i = threadIdx.x & 31; i < count_ * kChunk * kUnits; i += 32) {
      const int unit = i % kUnits, channel = chunk * kChunk + i / kUnits % kChunk;
      const PlaneLine line(p_, first_ + i / (kUnits * kChunk));
      const int word = line.index * kBoxWords + 8 * unit;
      gather_unit<kRounds>(
          source + kWords * (line.image * p_.source_n + channel * p_.source_c) + word,
          channel < p_.group_sources ? p_.plane * kWords - word : 0, swizzle_line(to + 16 * i));
    }
  }

 private:
  const BoxesParams& p_;
  const void* const map_;
  const int first_, count_;  // the tile's first line, and its number of lines
};

// NCHW, small planes: one bulk copy per image, because the planes of a chunk of channels are
// contiguous.
template <TensorMath kMath>
class ImageCopy {
  static constexpr int kBytes = operand_bytes(kMath);
  static constexpr int kChunk = box_chunk(kMath);

 public:
  static constexpr int kWarps = 1;
  static constexpr bool kNamedBarriers = true;

  __device__ __forceinline__ ImageCopy(const BoxesParams& p, const void*, int index)
      : p_(p), first_(locate_tile(p, index).image), count_(count_images(p, first_)) {}

  __device__ __forceinline__ uint32_t bytes(int chunk) const { return count_ * image_bytes(chunk); }

  __device__ __forceinline__ void start(uint32_t to, int chunk, int, int, uint32_t barrier) const {
    const auto* from = static_cast<const char*>(p_.source) + kBytes * find_source(chunk);
#pragma unroll 1
    for (int i = 0; i < count_; ++i) {
      bulk_copy(to + i * image_pitch(p_), from, image_bytes(chunk), barrier);
      from += kBytes * p_.source_n;
    }
  }
  __device__ __forceinline__ void gather(uint32_t to, int chunk, int, int) const {
    const auto* from = static_cast<const uint16_t*>(p_.source) + kBytes / 2 * find_source(chunk);
    const int units = image_bytes(chunk) / 16;
    for (int i = 0; i < count_; ++i) {
      for (int unit = threadIdx.x & 31; unit < units; unit += 32) {
        gather_unit(from + 8 * unit, 8, to + i * image_pitch(p_) + 16 * unit);
      }
      from += kBytes / 2 * p_.source_n;
    }
  }

 private:
  // The last chunk may have fewer channels.
  __device__ __forceinline__ uint32_t image_bytes(int chunk) const {
    return min(kChunk, p_.group_sources - chunk * kChunk) * p_.plane * kBytes;
  }
  // Offset, in elements, of a chunk in the tile's first image.
  __device__ __forceinline__ int64_t find_source(int chunk) const {
    return first_ * p_.source_n + chunk * kChunk * p_.plane;
  }

  const BoxesParams& p_;
  const int first_, count_;  // the tile's first image, and its number of images
};

// Number of filter boxes that hold at least one filter. Boxes past the last filter are not issued,
// because TMA takes longer for rows outside of a tensor than for others.
template <int kFilters>
__device__ __forceinline__ int count_filter_boxes(const BoxesParams& p, int first_filter) {
  const int filters = min(kFilters, p.group_targets - first_filter);
  return (filters + kBoxFilters - 1) / kBoxFilters;
}

// Copies the filters of one tap and one chunk; called by one lane. kColumns: BoxFilters::kColumns.
template <bool kColumns>
struct FilterCopy {
  const void* map;
  int filter, boxes;

  __device__ __forceinline__ uint32_t bytes() const {
    return boxes * (kBoxFilters * kBoxLineBytes);
  }
  // r, s: row and column of the kernel.
  __device__ __forceinline__ void start(uint32_t to, int channel, int r, int s,
                                        uint32_t barrier) const {
#pragma unroll 1
    for (int i = 0; i < boxes; ++i, to += kBoxFilters * kBoxLineBytes) {
      const int first = filter + i * kBoxFilters;
      box_copy(to, map, kColumns ? first : channel, s, r, kColumns ? channel : first, barrier);
    }
  }
};

// Loads the resident filters. They are those of the block's first tile: all tiles of a block have
// the same filters then.
template <int kFilters, int kChunk, bool kColumns>
__device__ __forceinline__ void copy_resident(const BoxesParams& p, const BoxesRing& ring,
                                              const void* map) {
  if (!elect_lane()) return;
  const int filter = locate_filter(p, blockIdx.x, kFilters);
  const FilterCopy<kColumns> filters{map, filter, count_filter_boxes<kFilters>(p, filter)};
  int taps = 0;
#pragma unroll
  for (const BoxPhaseParams& phase : p.phases) taps += phase.taps;
  arrive_expecting(ring.filters_full, taps * p.chunks * filters.bytes());
  uint32_t to = ring.resident;
#pragma unroll 1
  for (const BoxPhaseParams& phase : p.phases) {
#pragma unroll 1
    for (int i = 0; i < phase.tap_rows; ++i) {
#pragma unroll 1
      for (int j = 0; j < phase.tap_columns; ++j) {
        const int r = phase.tap_r0 + i * phase.tap_r_step, s = phase.tap_s0 + j * phase.tap_s_step;
#pragma unroll 1
        for (int chunk = 0; chunk < p.chunks; ++chunk, to += kFilters * kBoxLineBytes) {
          filters.start(to, chunk * kChunk, r, s, ring.filters_full);
        }
      }
    }
  }
}

// Hands out the stages of the ring in order, each once the consumers have released it.
template <typename Source>
class FreeStages {
 public:
  __device__ __forceinline__ FreeStages(const BoxesParams& p, const BoxesRing& ring)
      : p_(p), ring_(ring) {}

  // Waits for the next free stage and returns its number in the ring.
  __device__ __forceinline__ int take() {
    const int slot = cursor_.slot;
    if constexpr (Source::kNamedBarriers) {
      if (taken_ >= p_.stages) {
        wait_for_stage<Source::kWarps>(slot);
        // This wait returns at once; synccheck requires it where many lanes arrive.
        if constexpr (Source::kWarps > 1) wait_barrier(ring_.full + 8 * slot, cursor_.parity ^ 1);
      }
      ++taken_;
    } else {
      wait_barrier(ring_.empty + 8 * slot, cursor_.parity ^ 1);
    }
    cursor_.advance(p_.stages);
    return slot;
  }

  // Call after the last stage, which the consumers do not release. Waits for the releases of all
  // other stages: a block must not end while arrivals at its barriers are pending.
  __device__ __forceinline__ void finish() {
    if constexpr (Source::kNamedBarriers) {
      for (int i = 1; i < p_.stages; ++i, cursor_.advance(p_.stages)) {
        if (taken_ + i > p_.stages) wait_for_stage<Source::kWarps>(cursor_.slot);
      }
    }
  }

 private:
  const BoxesParams& p_;
  const BoxesRing& ring_;
  RingCursor cursor_;
  int taken_ = 0;
};

// Each lane arrives twice at a stage: when its cp.async copies complete, and for its own stores.
inline constexpr int kLaneArrivals = 2;
__device__ __forceinline__ void arrive_twice(uint32_t barrier) {
  arrive_after_copies(barrier);
  arrive(barrier);
}

// Fills a stage with nothing but the index of its tile. Called by all lanes of all producer warps.
template <typename Source>
__device__ __forceinline__ void send_index(const BoxesParams& p, const BoxesRing& ring, int slot,
                                           int index, bool follows) {
  if constexpr (Source::kWarps > 1) {
    arrive_twice(ring.full + 8 * slot);
  } else if (!p.boxed_source) {
    arrive(ring.full + 8 * slot);
  }
  __syncwarp();
  if (!follows && elect_lane()) {
    store_word(ring.tile + 4 * slot, index);
    arrive(ring.full + 8 * slot);
  }
  __syncwarp();
}

// The producer's loop over work items and the steps of their reductions. kChunk: channels of a
// stage. kColumns: filters are read as BoxFilters::kColumns.
template <typename Source, int kFilters, int kChunk, bool kColumns>
__device__ __forceinline__ void copy_boxes(const BoxesParams& p, const BoxesRing& ring,
                                           const void* source_map, const void* filter_map) {
  constexpr bool kByLanes = Source::kWarps > 1;
  // True for all producer warps but the first: they copy pixels only.
  const bool follows = kByLanes && threadIdx.x >= kBoxMultipliers + 32;
  if (p.resident && !follows) copy_resident<kFilters, kChunk, kColumns>(p, ring, filter_map);
  FreeStages<Source> free(p, ring);
  TileOrder order(p);
#pragma unroll 1
  for (; order.index() < p.tiles; order.take_next()) {
    order.ask_for_next();
    const WorkItem item(p, order.index());
    Source source(p, source_map, item.tile);
    if constexpr (kByLanes) source.skip(item.first_step);
    const int filter = locate_filter(p, item.tile, kFilters);
    const FilterCopy<kColumns> filters{filter_map, filter,
                                       p.resident ? 0 : count_filter_boxes<kFilters>(p, filter)};
    const BoxPhaseParams& phase = p.phases[item.phase];
    if (!kByLanes && phase.taps == 0) {
      send_index<Source>(p, ring, free.take(), order.index(), follows);
      continue;
    }
    BoxStep<kByLanes> step(p, phase, item.first_step);
#pragma unroll 1
    for (int i = 0; i < item.steps; ++i, step.advance(p, phase)) {
      const int slot = free.take();
      const uint32_t full = ring.full + 8 * slot;
      const uint32_t stage = ring.first + slot * p.stage_bytes;
      uint32_t bytes = filters.bytes();
      if constexpr (kByLanes) {
        source.copy(stage, p.group_sources - step.chunk * kChunk);
        arrive_twice(full);
        if (follows) continue;
      } else if (p.boxed_source) {
        bytes += source.bytes(step.chunk);
      } else {
        source.gather(stage, step.chunk, step.row, step.column);
        fence_async_proxy();
        arrive(full);
      }
      __syncwarp();
      if (elect_lane()) {
        store_word(ring.tile + 4 * slot, order.index());
        arrive_expecting(full, bytes);
        if constexpr (!kByLanes) {
          if (p.boxed_source) source.start(stage, step.chunk, step.row, step.column, full);
        }
        filters.start(stage + p.pixel_bytes, step.chunk * kChunk,
                      phase.tap_r0 + step.row * phase.tap_r_step,
                      phase.tap_s0 + step.column * phase.tap_s_step, full);
      }
    }
  }
  // One more stage carries a tile index past the last one, which ends the consumers' loop.
  send_index<Source>(p, ring, free.take(), order.index(), follows);
  free.finish();
}

}  // namespace convx
