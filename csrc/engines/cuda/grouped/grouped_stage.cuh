// Staging of the grouped FFMA kernel: source rows and weights into shared memory.
#pragma once

#include "device/convert.cuh"
#include "device/cp_async.cuh"
#include "engines/cuda/grouped/grouped_geometry.h"

namespace convx {

// The part of the problem that a block computes.
struct GroupedBlock {
  int first_group, groups;
  int first_row, rows;  // of the output
  int first_column, columns;
  int first_image, images;
};

__device__ inline GroupedBlock locate_grouped_block(const GroupedTask& p) {
  GroupedBlock block;
  int index = blockIdx.x;
  block.first_column = p.by_column_tiles.split(index) * p.tile_cols;
  block.columns = min(p.tile_cols, p.column.count - block.first_column);
  block.first_row = p.by_row_tiles.split(index) * p.tile_rows;
  block.rows = min(p.tile_rows, p.row.count - block.first_row);
  block.first_group = p.by_group_tiles.split(index) * p.tile_groups;
  block.groups = min(p.tile_groups, p.groups - block.first_group);
  block.first_image = index * p.tile_images;
  block.images = min(p.tile_images, p.images - block.first_image);
  return block;
}

// Units count along a line first, then from line to line.
__device__ inline StagedUnit locate_unit(const GroupedParams& p, const GroupedBlock& block,
                                         int index) {
  int row = index;
  int segment = p.stage.by_units.split(row);
  const int i = p.segment_first + p.by_segment_units.split(segment) * p.stage.unit;
  const int x = block.first_column * p.column.source_step + p.column_start + i * p.column_step +
                segment * p.column.offset_step;
  const int y = block.first_row * p.row.source_step + p.row.offset0 + row;
  StagedUnit unit;
  unit.source =
      block.first_image * p.source_n + block.first_group * p.source_group + y * p.source_h + x;
  unit.shared = row * p.stage.line_pitch + segment * p.segment_pitch + i;
  unit.row = static_cast<int16_t>(row < p.stage.lines_per_pass ? row : -1);
  unit.inside = static_cast<unsigned>(x) < static_cast<unsigned>(p.source_width);
  return unit;
}

// Copies a unit of the same row and columns of several channels. If `inside` is false, it writes
// zeros and does not read the source.
template <int kBytes, typename T>
__device__ __forceinline__ void copy_channels(const GroupedParams& p, T* shared, const T* source,
                                              int channels, bool inside) {
  if constexpr (kBytes == 2) {  // too small for cp.async, so it goes through registers
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
  } else if (channels == kChunkChannels) {
#pragma unroll
    for (int c = 0; c < kChunkChannels; ++c) {
      copy_or_clear<kBytes>(shared, source, inside);
      shared += p.channel_pitch;
      source += p.source_c;
    }
  } else {
#pragma unroll 1
    for (int c = 0; c < channels; ++c) {
      copy_or_clear<kBytes>(shared, source, inside);
      shared += p.channel_pitch;
      source += p.source_c;
    }
  }
}

// Copies the unit in every lines_per_pass-th row of each group.
template <int kBytes, typename T>
__device__ __forceinline__ void stage_unit(const GroupedParams& p, const GroupedBlock& block,
                                           const StagedUnit& unit, const T* source, T* shared,
                                           int channels) {
  const int first_y = block.first_row * p.row.source_step + p.row.offset0;
  const unsigned height = unit.inside ? p.source_height : 0;
  const int lines = p.stage.lines_per_pass;
#pragma unroll 1
  for (int group = 0; group < block.groups; ++group) {
    const T* from = source;
    T* to = shared;
#pragma unroll 1
    for (int row = unit.row; row < p.stage.rows; row += lines) {
      copy_channels<kBytes>(p, to, from, channels, static_cast<unsigned>(first_y + row) < height);
      to += lines * p.stage.line_pitch;
      from += lines * p.source_h;
    }
    source += p.source_group;
    shared += p.group_pitch;
  }
}

// Issues the copies of one chunk of channels of one image, with zeros for padding. A thread keeps
// its unit of the line and goes down the rows. `image` counts from the block's first.
template <typename T>
__device__ inline void stage_chunk(const GroupedParams& p, const GroupedBlock& block,
                                   const StagedUnit& unit, int image, int chunk, T* lines) {
  if (unit.row < 0) return;
  const int first_channel = chunk * p.chunk;
  const int channels = min(p.chunk, p.source_channels - first_channel);
  const T* source = static_cast<const T*>(p.source) + unit.source + image * p.source_n +
                    first_channel * p.source_c;
  T* shared = lines + unit.shared;
  switch (p.stage.unit * static_cast<int>(sizeof(T))) {
    case 16:
      stage_unit<16>(p, block, unit, source, shared, channels);
      break;
    case 8:
      stage_unit<8>(p, block, unit, source, shared, channels);
      break;
    case 4:
      stage_unit<4>(p, block, unit, source, shared, channels);
      break;
    default:
      if constexpr (sizeof(T) == 2) stage_unit<2>(p, block, unit, source, shared, channels);
      break;
  }
}

// Stages the weights of the tile's groups in float32, [group][filter set][channel][row tap]
// [column class][tap of class][filter of set], so that the weights that a cell multiplies with one
// source value are one vector. Missing filters are zeros.
template <int kFilters, typename T>
__device__ inline void stage_weights(const GroupedParams& p, const GroupedBlock& block,
                                     float* weights) {
  constexpr int kBatch = 4;  // loads in flight
  const int filter_sets = p.by_filter_sets.divisor;
  const int rows = block.groups * filter_sets * p.source_channels * p.row.taps * kFilters;
  // A thread loads the taps of one row.
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < rows; i += blockDim.x) {
    const int filter_of_set = i % kFilters;
    int group = i / kFilters;
    const int r = p.by_row_taps.split(group);
    const int c = p.by_channels.split(group);
    const int set = p.by_filter_sets.split(group);
    const int filter = set * kFilters + filter_of_set;
    const T* from =
        static_cast<const T*>(p.weight) + (block.first_group + group) * p.weight_group +
        (filter * p.weight_target + c * p.weight_source + r * p.weight_row + p.weight_first);
    float* to = weights + (group * filter_sets + set) * p.set_weights + c * p.channel_weights +
                r * p.tap_row_weights + filter_of_set;
    const int there = filter < p.target_channels ? p.column.taps : 0;
    int column_class = 0;
    int tap = 0;  // within the class
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

// Stages the bias of the tile's filters in float32, [group][filter set][filter of set].
template <int kFilters, typename T>
__device__ inline void stage_bias(const GroupedParams& p, const GroupedBlock& block, float* bias) {
  const int filter_sets = p.by_filter_sets.divisor;
  for (int i = threadIdx.x; i < block.groups * filter_sets * kFilters; i += blockDim.x) {
    int group = i / kFilters;
    const int filter = p.by_filter_sets.split(group) * kFilters + i % kFilters;
    const int64_t k = int64_t{block.first_group + group} * p.target_channels + filter;
    const bool there = p.bias != nullptr && filter < p.target_channels;
    bias[i] = there ? to_accumulate(static_cast<const T*>(p.bias)[k]) : 0.0f;
  }
}

}  // namespace convx
