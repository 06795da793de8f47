// The staging role of the grouped kernel: source rows and weights into shared memory.
#pragma once

#include "device/convert.cuh"
#include "device/cp_async.cuh"
#include "engines/cuda_grouped/grouped_params.h"

namespace convx {

// The part of the problem a block computes.
struct GroupedBlock {
  int first_plane, planes;  // planes: that exist
  int first_row, rows;      // output rows
  int first_column, columns;
};

__device__ inline GroupedBlock locate_grouped_block(const GroupedParams& p) {
  GroupedBlock block;
  int index = blockIdx.x;
  block.first_column = p.by_column_tiles.split(index) * p.tile_cols;
  block.columns = min(p.tile_cols, p.column.count - block.first_column);
  block.first_row = p.by_row_tiles.split(index) * p.tile_rows;
  block.rows = min(p.tile_rows, p.row.count - block.first_row);
  block.first_plane = index * p.tile_planes;
  block.planes = min(p.tile_planes, p.planes - block.first_plane);
  return block;
}

// Copies units of the same row and columns of up to kChunkChannels channels, or clears them; source
// is not read then.
template <int kBytes, typename T>
__device__ __forceinline__ void copy_channels(const GroupedParams& p, T* shared, const T* source,
                                              int channels, bool inside) {
  if constexpr (kBytes >= 4) {
#pragma unroll
    for (int c = 0; c < kChunkChannels; ++c) {
      if (c < channels) copy_or_clear<kBytes>(shared, source, inside);
      shared += p.channel_pitch;
      source += p.source_c;
    }
  } else {  // single 16-bit elements go through registers
    T values[kChunkChannels];
#pragma unroll
    for (int c = 0; c < kChunkChannels; ++c) {
      values[c] = round_to<T>(0.0f);
      if (inside && c < channels) values[c] = source[c * p.source_c];
    }
#pragma unroll
    for (int c = 0; c < kChunkChannels; ++c) {
      if (c < channels) shared[c * p.channel_pitch] = values[c];
    }
  }
}

// The unit of the lines that a thread keeps to, in the first line it copies.
template <typename T>
struct LineUnit {
  T* shared;
  int row, x;  // row of the tile, column of the image
};

// Copies a unit of every lines_per_pass-th row of each plane.
template <int kBytes, typename T>
__device__ __forceinline__ void stage_unit(const GroupedParams& p, const GroupedBlock& block,
                                           int chunk, const LineUnit<T>& unit) {
  const int first_channel = chunk * p.chunk;
  const int channels = min(p.chunk, p.source_channels - first_channel);
  const int first_y = block.first_row * p.row.source_step + p.row.offset0 + unit.row;
  // Units never straddle the edge.
  const bool inside = static_cast<unsigned>(unit.x) < static_cast<unsigned>(p.source_width);
  const unsigned height = inside ? p.source_height : 0;
  const int lines = p.stage.lines_per_pass;
  int image = block.first_plane;
  int group = p.by_groups.split(image);
  const T* image_source =
      static_cast<const T*>(p.source) + image * p.source_n + first_y * p.source_h + unit.x;
  int64_t channel = int64_t{group} * p.source_channels + first_channel;
  T* plane_shared = unit.shared;
  for (int plane = 0; plane < block.planes; ++plane) {
    const T* source = image_source + channel * p.source_c;
    T* shared = plane_shared;
    int y = first_y;
    for (int row = unit.row; row < p.stage.rows; row += lines) {
      copy_channels<kBytes>(p, shared, source, channels, static_cast<unsigned>(y) < height);
      shared += lines * p.stage.line_pitch;
      source += lines * p.source_h;
      y += lines;
    }
    plane_shared += p.plane_pitch;
    channel += p.source_channels;
    if (++group == static_cast<int>(p.by_groups.divisor)) {
      group = 0;
      channel = first_channel;
      image_source += p.source_n;
    }
  }
}

// Copies the source rows of a chunk of channels, zeros where they are padding. A thread keeps to
// its unit of the lines and goes down the rows of each plane.
template <typename T>
__device__ inline void stage_chunk(const GroupedParams& p, const GroupedBlock& block, int chunk,
                                   T* lines) {
  LineUnit<T> to;
  to.row = threadIdx.x;
  const int first_unit = p.stage.by_units.split(to.row);
  if (to.row >= p.stage.lines_per_pass) return;
  for (int unit = first_unit; unit < p.stage.units; unit += blockDim.x) {
    int segment = unit;
    const int i = p.segment_first + p.by_segment_units.split(segment) * p.stage.unit;
    to.x = block.first_column * p.column.source_step + p.column_start + i * p.column_step +
           segment * p.column.offset_step;
    to.shared = lines + to.row * p.stage.line_pitch + segment * p.segment_pitch + i;
    switch (p.stage.unit * static_cast<int>(sizeof(T))) {
      case 16:
        stage_unit<16>(p, block, chunk, to);
        break;
      case 8:
        stage_unit<8>(p, block, chunk, to);
        break;
      case 4:
        stage_unit<4>(p, block, chunk, to);
        break;
      default:
        if constexpr (sizeof(T) == 2) stage_unit<2>(p, block, chunk, to);
        break;
    }
  }
}

// The weights of the tile's groups in float32, [plane][part][channel][row tap][column class][tap of
// class][filter of part]: what a cell multiplies with one source value is one vector. Filters that
// do not exist are zeros.
template <int kFilters, typename T>
__device__ inline void stage_weights(const GroupedParams& p, const GroupedBlock& block,
                                     float* weights) {
  constexpr int kBatch = 4;  // loads under way
  const int parts = p.by_parts.divisor;
  const int rows = block.planes * parts * p.source_channels * p.row.taps * kFilters;
  // A thread brings in the taps of one row.
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < rows; i += blockDim.x) {
    const int filter_of_part = i % kFilters;
    int plane = i / kFilters;
    const int r = p.by_row_taps.split(plane);
    const int c = p.by_channels.split(plane);
    const int part = p.by_parts.split(plane);
    int image = block.first_plane + plane;
    const int group = p.by_groups.split(image);
    const int filter = part * kFilters + filter_of_part;
    const T* from =
        static_cast<const T*>(p.weight) + group * p.weight_group +
        (filter * p.weight_target + c * p.weight_source + r * p.weight_row + p.weight_first);
    float* to = weights + (plane * parts + part) * p.part_weights + c * p.channel_weights +
                r * p.tap_row_weights + filter_of_part;
    const int there = filter < p.target_channels ? p.column.taps : 0;
    int column_class = 0;
    int tap = 0;  // of the class
#pragma unroll 1
    for (int first = 0; first < p.column.taps; first += kBatch) {
      float batch[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        batch[b] = 0.0f;
        if (first + b < there) batch[b] = to_accumulate(from[(first + b) * p.weight_column]);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (first + b >= p.column.taps) break;
        to[(column_class * p.class_taps_pitch + tap) * kFilters] = batch[b];
        if (++column_class == p.column.classes) {
          column_class = 0;
          ++tap;
        }
      }
    }
  }
}

}  // namespace convx
