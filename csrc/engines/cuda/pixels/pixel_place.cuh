// Positions of tiles, pixels and staged source values (pixel_fit.h).
#pragma once

#include "engines/cuda/pixels/pixel_fit.h"

namespace convx {

struct PixelTile {
  int first, end;          // first pixel, and the end of the tile's image or of all pixels
  int image, row, column;  // coordinates of the first pixel
  int group;
  int filter;       // first filter of the tile, within its group
  int filter_tile;  // index among all groups
  int chunk, chunk_end, split;
};

__device__ __forceinline__ PixelTile locate_tile(const PixelParams& p, int index) {
  PixelTile tile;
  tile.split = p.by_splits.split(index);
  tile.filter_tile = p.by_filter_tiles_all.split(index);
  tile.group = p.by_filter_tiles.divide(tile.filter_tile);
  tile.filter = (tile.filter_tile - tile.group * p.filter_tiles) * p.tile_filters;
  tile.chunk = tile.split * p.chunks / p.splits;
  tile.chunk_end = (tile.split + 1) * p.chunks / p.splits;
  tile.first = 0;
  tile.end = p.pixels;
  int within = index;
  if (p.per_image) {
    within = p.by_image_tiles.split(index);
    tile.first = index * p.plane;
    tile.end = tile.first + p.plane;
  }
  tile.first += within * 2 * p.window_step;
  int rest = min(tile.first, p.pixels - 1);
  tile.column = p.by_target_width.split(rest);
  tile.row = p.by_target_height.split(rest);
  tile.image = rest;
  return tile;
}

// The staged source values of a tile, in positions.
class StagedTile {
 public:
  __device__ __forceinline__ StagedTile(const PixelParams& p, const PixelTile& tile)
      : p_(p), tile_(tile), lead_(p.offset_w0 & (p.vector - 1)) {
    if (p.bands) {
      first_extent_ = p.image_rows - tile.row * p.source_step_h;
    } else {
      first_column_ = tile.column * p.source_step_w + p.offset_w0;
      first_lead_ = first_column_ & (p.vector - 1);
      const int last = (p.target_width - 1 - tile.column) * p.source_step_w + p.span;
      first_extent_ = (first_lead_ + last + p.vector) & -p.vector;
    }
  }

  // Position of a pixel's first tap.
  __device__ __forceinline__ int base(int pixel) const {
    int rest = min(pixel, tile_.end - 1);
    const int column = p_.by_target_width.split(rest);
    if (!p_.bands) {
      const int segment = rest - (tile_.image * p_.target_height + tile_.row);
      return segment == 0
                 ? first_lead_ + (column - tile_.column) * p_.source_step_w
                 : first_extent_ + (segment - 1) * p_.segment + lead_ + column * p_.source_step_w;
    }
    const int row = p_.by_target_height.split(rest) * p_.source_step_h;
    const int image = rest - tile_.image;
    const int staged_row = image == 0 ? row - tile_.row * p_.source_step_h
                                      : first_extent_ + (image - 1) * p_.image_rows + row;
    return staged_row * p_.row_pitch + lead_ + column * p_.source_step_w;
  }

  // Offset of a position's source value from the tile's first image, or -1 if it is outside.
  __device__ __forceinline__ int source(int position) const {
    int staged_row = position;
    int column = p_.by_row_pitch.split(staged_row);
    int image = tile_.image, row;
    if (p_.bands) {
      column += p_.offset_w0 - lead_;
      if (staged_row < first_extent_) {
        row = tile_.row * p_.source_step_h + p_.offset_h0 + staged_row;
      } else {
        int rest = staged_row - first_extent_;
        row = p_.offset_h0 + p_.by_image_rows.split(rest);
        image += 1 + rest;
      }
    } else {
      image = tile_.image * p_.target_height + tile_.row;  // for now a target row
      if (column < first_extent_) {
        column += first_column_ - first_lead_;
      } else {
        int rest = column - first_extent_;
        column = p_.by_segment.split(rest) + p_.offset_w0 - lead_;
        image += 1 + rest;
      }
      row = p_.by_target_height.split(image) * p_.source_step_h + p_.offset_h0 +
            staged_row * p_.offset_h_step;
    }
    const bool inside = image < p_.images &&
                        static_cast<unsigned>(row) < static_cast<unsigned>(p_.source_height) &&
                        static_cast<unsigned>(column) < static_cast<unsigned>(p_.source_width);
    return inside ? (image - tile_.image) * static_cast<int>(p_.source_n) +
                        row * static_cast<int>(p_.source_h) + column * static_cast<int>(p_.source_w)
                  : -1;
  }

 private:
  const PixelParams& p_;
  const PixelTile& tile_;
  const int lead_;  // positions before the first one that is used, for alignment
  int first_column_ = 0, first_lead_ = 0;
  // Rows of the first image's band, or positions of the first segment.
  int first_extent_;
};

// Tables in a block's shared memory:
//
//     sources    [entries]: offset of an entry's source values, or -1 outside of the image
//     distances  folded k only: [steps][4][gathered depth], byte distances from a pixel's base of
//                the values that thread t (t % 4) gathers, or -1 for k of the padding; for pairs
//                [steps][4][kPairDepth], with 0 for pairs of the padding
//     targets    [2][window]: offset of each pixel's target
struct PixelTables {
  int* sources;
  int* distances;
  int* targets;

  __device__ __forceinline__ PixelTables(const PixelParams& p, char* memory, int depth,
                                         int window) {
    distances = reinterpret_cast<int*>(memory);
    targets = distances + (p.folded ? p.steps * 4 * depth : 0);
    sources = targets + 2 * window;
  }
};

template <TensorMath kMath>
__device__ __forceinline__ void fill_distances(const PixelParams& p, int* distances) {
  constexpr int kDepth = gathered_depth(kMath);
  constexpr int kStepDepth = step_depth(kMath);
  const int taps = p.tap_rows * p.tap_columns;
  const int element_bytes = kMath == TensorMath::kTf32 || kMath == TensorMath::kIeee ? 4 : 2;
  for (int i = threadIdx.x; i < p.steps * 4 * kDepth; i += blockDim.x) {
    const int n = i % kDepth, quad = i / kDepth % 4, step = i / kDepth / 4;
    const int k = kDepth == 2 ? quad + 4 * n : 2 * quad + n % 2 + 8 * (n / 2);
    const int lane = step * kStepDepth + k;
    const int channel = lane / taps, tap = lane % taps;
    const int row = tap / p.tap_columns * (p.bands ? p.offset_h_step : 1);
    const int distance =
        channel * p.channel_pitch +
        (row * p.row_pitch + tap % p.tap_columns * p.offset_w_step) * p.position_pitch;
    distances[i] = channel < p.chunk_channels ? distance * element_bytes : -1;
  }
}

// The taps of a pair of k: columns 2 * column - pair_lead and the next of a kernel row, if they
// exist.
struct TapPair {
  int channel, row, column;
};

__device__ __forceinline__ TapPair locate_pair(const PixelParams& p, int pair) {
  const int row = pair / p.row_pairs;  // kernel row, counted over all channels
  const int channel = row / p.tap_rows;
  return {channel, row - channel * p.tap_rows, pair - row * p.row_pairs};
}

// A pair of the padding is multiplied by zeros, so that any distance will do.
template <TensorMath kMath>
__device__ __forceinline__ void fill_pair_distances(const PixelParams& p, int* distances) {
  constexpr int kStepPairs = 4 * kPairDepth;
  for (int i = threadIdx.x; i < p.steps * kStepPairs; i += blockDim.x) {
    const int n = i % kPairDepth, quad = i / kPairDepth % 4, step = i / kStepPairs;
    const TapPair at = locate_pair(p, step * kStepPairs + quad + 4 * n);
    const int row = at.row * (p.bands ? p.offset_h_step : 1);
    const int distance = (at.channel * p.channel_pitch + row * p.row_pitch) / 2 + at.column;
    distances[i] = at.channel < p.chunk_channels ? distance * pair_bytes(kMath) : 0;
  }
}

}  // namespace convx
