// Loads of the gather kernel: the source tile and the weights of a chunk to shared memory. The
// layouts are in gather_kernel.cuh.
#pragma once

#include "device/cp_async.cuh"
#include "engines/cuda/direct/gather_block.cuh"

namespace convx {

// Source and extents of a chunk's source tile.
template <typename T>
struct SourceTile {
  const T* source;  // the chunk's first channel, the tile's first image
  int h, w;         // image position of the first staged row and column
  int plane_rows;   // staged rows of one image
  int plane;        // staged elements of one channel

  __device__ SourceTile(const GatherParams& p, const GatherBlock& block, const GatherChunk& chunk) {
    const AxisParams& row = *block.row;
    const AxisParams& column = *block.column;
    // The source is [n][group, c][h][w] with any strides.
    source = static_cast<const T*>(p.source) + block.first_image * p.source_strides.n +
             (int64_t{block.group} * p.source_channels + chunk.channel) * p.source_strides.c;
    h = block.row_b * row.period + block.row_lane * row.source_step +
        chunk.row_tap * row.offset_step + row.offset0;
    w = chunk.column_tap * column.offset_step + column.offset0;
    plane_rows = row.staged_classes * row.staged_length;
    plane = p.tile_images * plane_rows * column.row_pitch;
  }
};

// Copies one staged position for channels first, first + step, ... of the chunk.
template <typename T>
__device__ __forceinline__ void copy_channels(const GatherParams& p, const SourceTile<T>& tile,
                                              const T* from, accumulate_t<T>* to, bool valid,
                                              int first, int step, int channels) {
  if (channels == 1) {  // depthwise: no loop
    if (first == 0) copy_element<T>(to, from, valid);
    return;
  }
  const int64_t from_step = valid ? step * p.source_strides.c : 0;
  from += valid ? first * p.source_strides.c : 0;
  to += first * tile.plane;
#pragma unroll 4
  for (int c = first; c < channels; c += step) {
    copy_element<T>(to, from, valid);
    from += from_step;
    to += step * tile.plane;
  }
}

// The positions of a tile that a thread copies, and their channels.
struct CopyRole {
  int position = threadIdx.x;
  int position_step;
  int channel = 0;
  int channel_step = 1;

  __device__ CopyRole(const GatherParams& p, int threads) : position_step(threads) {
    if (!p.channel_fastest) return;
    // Channels_last: neighbouring threads copy neighbouring channels; p.channels divides the block.
    position = threadIdx.x / p.channels;
    position_step = threads / p.channels;
    channel = threadIdx.x % p.channels;
    channel_step = p.channels;
  }
};

// One staged position. Computing it takes more instructions than copying a few channels of it, so
// each thread stores its positions in the table and reuses them while only the channels advance.
struct alignas(16) CopyEntry {
  int64_t from;  // elements from the tile's source; -1: write zeros
  int to;        // elements from the start of a channel's plane
};

// Fills the thread's part of the table for the taps of a chunk. Works for any tile.
template <typename T, int kThreads>
__device__ inline void find_positions(const GatherParams& p, const GatherBlock& block,
                                      const GatherChunk& chunk, CopyEntry* table) {
  const AxisParams& row = *block.row;
  const AxisParams& column = *block.column;
  const SourceTile<T> tile(p, block, chunk);
  const int positions = p.tile_images * tile.plane_rows * column.staged_strips *
                        column.staged_classes * column.staged_length;
  const CopyRole role(p, kThreads);
  table += threadIdx.x;
#pragma unroll 1
  for (int position = role.position; position < positions; position += role.position_step) {
    int rest = position;
    const int a = column.by_staged_length.split(rest);
    const int column_class = column.by_staged_classes.split(rest);
    const int strip = column.by_staged_strips.split(rest);
    const int staged_row = rest;  // [image][class][row]
    const int i = row.by_staged_length.split(rest);
    const int row_class = row.by_staged_classes.split(rest);
    const int image = rest;

    int b = block.first_strip + strip;
    const int lane = column.by_lanes.split(b);
    const int h = tile.h + i * row.period + row_class * row.offset_step;
    const int w = tile.w + (b * kStrip + a) * column.period + lane * column.source_step +
                  column_class * column.offset_step;
    const bool valid = static_cast<unsigned>(h) < static_cast<unsigned>(p.source_h) &&
                       static_cast<unsigned>(w) < static_cast<unsigned>(p.source_w) &&
                       block.first_image + image < p.images;
    CopyEntry entry;
    entry.from = valid ? image * p.source_strides.n +  // image
                             h * p.source_strides.h +  // row
                             w * p.source_strides.w    // column
                       : -1;
    entry.to = staged_row * column.row_pitch +         // image, class, row
               strip * column.strip_pitch +            // strip
               column_class * column.class_pitch + a;  // class, window
    *table = entry;
    table += kThreads;
  }
}

template <typename T, int kThreads>
__device__ inline void load_windows(const GatherParams& p, const GatherBlock& block,
                                    const GatherChunk& chunk, const CopyEntry* table,
                                    accumulate_t<T>* stage) {
  const AxisParams& column = *block.column;
  const SourceTile<T> tile(p, block, chunk);
  const int positions = p.tile_images * tile.plane_rows * column.staged_strips *
                        column.staged_classes * column.staged_length;
  const CopyRole role(p, kThreads);
  table += threadIdx.x;
  for (int position = role.position; position < positions; position += role.position_step) {
    const CopyEntry entry = *table;
    const bool valid = entry.from >= 0;
    copy_channels(p, tile, tile.source + (valid ? entry.from : 0), stage + entry.to, valid,
                  role.channel, role.channel_step, chunk.channels);
    table += kThreads;
  }
}

// Stages a tile of long runs of columns. A warp copies whole rows, with hardly any index arithmetic
// per value.
template <typename T, int kThreads>
__device__ inline void load_runs(const GatherParams& p, const GatherBlock& block,
                                 const GatherChunk& chunk, accumulate_t<T>* stage) {
  const AxisParams& row = *block.row;
  const AxisParams& column = *block.column;
  const SourceTile<T> tile(p, block, chunk);
  const int first_w = tile.w + block.first_strip * kStrip * column.period;
  for (int line = threadIdx.x / 32; line < p.tile_images * tile.plane_rows; line += kThreads / 32) {
    int rest = line;
    const int i = row.by_staged_length.split(rest);
    const int row_class = row.by_staged_classes.split(rest);
    const int image = rest;
    const int h = tile.h + i * row.period + row_class * row.offset_step;
    const bool row_valid = static_cast<unsigned>(h) < static_cast<unsigned>(p.source_h) &&
                           block.first_image + image < p.images;
    const T* from = tile.source + image * p.source_strides.n + h * p.source_strides.h;
    for (int s = 0; s < column.staged_classes; ++s) {
      const int class_w = first_w + s * column.offset_step;
      auto* to = stage + line * column.row_pitch + s * column.class_pitch;
      for (int a = threadIdx.x % 32; a < column.staged_length; a += 32) {
        const int w = class_w + a * column.period;
        const bool valid =
            row_valid && static_cast<unsigned>(w) < static_cast<unsigned>(p.source_w);
        copy_channels(p, tile, valid ? from + w * p.source_strides.w : tile.source, to + a, valid,
                      0, 1, chunk.channels);
      }
    }
  }
}

template <typename T, int kThreads>
__device__ inline void load_source(const GatherParams& p, const GatherBlock& block,
                                   const GatherChunk& chunk, CopyEntry* table,
                                   accumulate_t<T>* stage) {
  if (block.column->runs) {
    load_runs<T, kThreads>(p, block, chunk, stage);
  } else {
    // Channel 0 comes first after the taps have changed.
    if (chunk.channel == 0) find_positions<T, kThreads>(p, block, chunk, table);
    load_windows<T, kThreads>(p, block, chunk, table, stage);
  }
}

// If a chunk has all taps, its packed weights are one contiguous range.
template <typename Acc, typename Tile>
__device__ inline void load_packed_weights(const GatherParams& p, const GatherBlock& block,
                                           const GatherChunk& chunk, Acc* stage) {
  constexpr int kFilters = Tile::kFilters;
  constexpr int kPiece = kFilters * sizeof(Acc) % 16 == 0 ? 16 / sizeof(Acc) : 1;
  const AxisParams& row = *block.row;
  const AxisParams& column = *block.column;
  const int64_t tiles = int64_t{p.groups} * p.filter_tiles;
  const int64_t phase = int64_t{row.tap_prefix} * p.all_column_taps +  // row phases before
                        int64_t{row.taps} * column.tap_prefix;         // column phases before
  const int64_t tile = int64_t{block.group} * p.filter_tiles + block.filter_tile;
  const int taps = row.taps * column.taps;
  const Acc* packed = static_cast<const Acc*>(p.weight) +
                      tiles * p.source_channels * phase * kFilters +
                      (tile * p.source_channels + chunk.channel) * taps * kFilters;
  const bool all_taps = chunk.row_taps == row.taps && chunk.column_taps == column.taps;
  const int chunk_taps = chunk.row_taps * chunk.column_taps;
  const int pieces = chunk.channels * chunk_taps * (kFilters / kPiece);
  for (int i = threadIdx.x; i < pieces; i += Tile::kThreads) {
    const Acc* from = packed + i * kPiece;
    if (!all_taps) {
      const int line = i / (kFilters / kPiece);  // [channel][row tap][column tap]
      const int c = line / chunk_taps;
      const int j = line % chunk_taps / chunk.column_taps;
      const int m = line % chunk_taps % chunk.column_taps;
      const int tap = (chunk.row_tap + j) * column.taps + chunk.column_tap + m;
      from = packed + (int64_t{c} * taps + tap) * kFilters + i % (kFilters / kPiece) * kPiece;
    }
    if constexpr (kPiece > 1) {
      copy_16_bytes(stage + i * kPiece, from);
    } else {
      copy_element<Acc>(stage + i, from, true);
    }
  }
}

// Gathers the weights from w if they were not packed.
template <typename T, typename Tile>
__device__ inline void load_raw_weights(const GatherParams& p, const GatherBlock& block,
                                        const GatherChunk& chunk, accumulate_t<T>* stage) {
  const AxisParams& row = *block.row;
  const AxisParams& column = *block.column;
  const int taps = chunk.row_taps * chunk.column_taps;
  for (int i = threadIdx.x; i < chunk.channels * taps * Tile::kFilters; i += Tile::kThreads) {
    const int k = block.filter_tile * Tile::kFilters + i % Tile::kFilters;
    const int line = i / Tile::kFilters;  // [channel][row tap][column tap]
    const int c = chunk.channel + line / taps;
    const int j = chunk.row_tap + line % taps / chunk.column_taps;
    const int m = chunk.column_tap + line % taps % chunk.column_taps;
    const bool valid = k < p.target_channels;
    const int64_t offset = block.group * p.weight_group_stride +
                           (valid ? k : 0) * p.weight_target_stride + c * p.weight_source_stride +
                           (row.tap0 + j * row.tap_step) * p.weight_r_stride +
                           (column.tap0 + m * column.tap_step) * p.weight_s_stride;
    copy_element<T>(stage + i, static_cast<const T*>(p.weight) + offset, valid);
  }
}

template <typename T, typename Tile>
__device__ inline void load_chunk(const GatherParams& p, const GatherBlock& block,
                                  const GatherChunk& chunk, CopyEntry* table,
                                  accumulate_t<T>* stage) {
  load_source<T, Tile::kThreads>(p, block, chunk, table, stage);
  if (p.packed) {
    load_packed_weights<accumulate_t<T>, Tile>(p, block, chunk, stage + p.weight_offset);
  } else {
    load_raw_weights<T, Tile>(p, block, chunk, stage + p.weight_offset);
  }
}

}  // namespace convx
