// Depthwise convolution in channels_last for any kernel: forward and stride-1 input gradient.
//
//     y[p][q][c] = bias[c] + sum over r, s of  x[row (p, r)][column (q, s)][c] * w[c][r][s]
//
//      source pixels in shared memory, `chunk` channels each
//      +---+---+---+---+---+---+         A thread computes 4 channels of 8 output rows in one
//      |   |   |   |   |   |   |         column. The neighbouring threads compute the other
//      +---+---+---+---+---+---+         channels of the chunk.
//      |   | # |   |   |   |   |
//      +---+---+---+---+---+---+         For each column of taps, the 8 source pixels under the
//      |   | # |   |   |   |   |         outputs stay in registers; each row of taps replaces one
//      +---+---+---+---+---+---+         of them.
//
// Loads: cp.async, 16 bytes at a time where the channels allow it, with zeros for padding. Stores
// go directly to global memory, 4 channels at a time. Rows slide by one for every stride and
// dilation (planning/gather_axis.h). Columns need no rearranging, because neighbouring pixels are
// not contiguous anyway.
//
// Shared memory:
//     pixels    [row][column][channel], in the storage type
//     weights   [row tap][column tap][channel], float32
// Limit: memory for 3x3; multiply-adds from about 13x13 on (docs/engines/cuda_depthwise.md).
// Grid: shares of a channel's filters fastest, then chunks, column tiles, row tiles, images.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/depthwise/stage_lines.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

struct ChannelsLastBlock {
  int image, first_channel;
  int first_row, rows;        // output rows
  int first_column, columns;  // output columns
  int first_filter, last_filter;
};

__device__ inline ChannelsLastBlock locate_pixel_block(const ChannelsLastParams& p) {
  ChannelsLastBlock block;
  int index = blockIdx.x;
  block.first_filter = p.by_shares.split(index) * p.filters_per_share;
  block.last_filter = min(block.first_filter + p.filters_per_share, p.t.multiplier);
  block.first_channel = p.by_chunks.split(index) * p.chunk;
  block.first_column = p.by_column_tiles.split(index) * p.tile_cols;
  block.columns = min(p.tile_cols, p.t.column.count - block.first_column);
  block.first_row = p.by_row_tiles.split(index) * p.tile_rows * p.t.row.lanes;
  block.rows = min(p.tile_rows * p.t.row.lanes, p.t.row.count - block.first_row);
  block.image = index;
  return block;
}

template <typename T>
__device__ inline void stage_pixels(const ChannelsLastParams& p, const ChannelsLastBlock& block,
                                    T* pixels) {
  const int column_base = block.first_column * p.t.column.source_step + p.t.column.offset0;
  const auto find_unit = [&](int unit, UnitColumn<T>& to) {
    int pixel = unit;
    const int channel = block.first_channel + p.by_pixel_units.split(pixel) * p.stage.unit;
    const int x = column_base + pixel;
    to.source = static_cast<const T*>(p.t.source) + x * p.t.source_w + channel;
    to.shared = pixels + unit * p.stage.unit;
    to.inside = static_cast<unsigned>(x) < static_cast<unsigned>(p.t.source_width) &&
                channel < p.t.channels;
  };
  const auto plane_offset = [&](int) { return block.image * p.t.source_n; };
  const int row_base = block.first_row * p.t.row.source_step + p.t.row.offset0;
  stage_lines<T>(p.stage, p.t, 1, row_base, find_unit, plane_offset);
}

template <typename T>
__device__ inline void stage_channels_last_weights(const ChannelsLastParams& p,
                                                   const ChannelsLastBlock& block, int filter,
                                                   float* weights) {
  const int taps = p.t.row.taps * p.t.column.taps;
#pragma unroll 2
  for (int i = threadIdx.x; i < p.chunk * taps; i += kDepthwiseThreads) {
    // Taps are usually contiguous in w; channels are contiguous in shared memory.
    int chunk_channel = i;
    const int tap = p.t.by_taps.split(chunk_channel);
    int r = tap;
    const int s = p.t.by_column_taps.split(r);
    const int64_t channel = block.first_channel + chunk_channel;
    if (channel >= p.t.channels) break;
    const int64_t offset = p.t.locate_weight(channel * p.t.multiplier + filter, r, s);
    weights[tap * p.chunk + chunk_channel] =
        to_accumulate(static_cast<const T*>(p.t.weight)[offset]);
  }
}

// Adds one column of taps, as multiply_taps does (plane_kernel.cuh). Steps are in elements.
template <typename T>
__device__ __forceinline__ void multiply_channels_last(
    const T* pixels, int row_step, const float* weights, int weight_step, int count,
    float (&sum)[kChannelsLastRows][kDepthwiseVector]) {
  float window[kChannelsLastRows][kDepthwiseVector];
#pragma unroll
  for (int j = 0; j < kChannelsLastRows - 1; ++j) {
    load_vector(window[j], pixels);
    pixels += row_step;
  }
  for (int first = 0; first < count; first += kChannelsLastRows) {
#pragma unroll
    for (int u = 0; u < kChannelsLastRows; ++u) {
      if (first + u >= count) break;
      float weight[kDepthwiseVector];
      load_vector(window[(u + kChannelsLastRows - 1) % kChannelsLastRows], pixels);
      load_vector(weight, weights);
      pixels += row_step;
      weights += weight_step;
#pragma unroll
      for (int j = 0; j < kChannelsLastRows; ++j) {
#pragma unroll
        for (int c = 0; c < kDepthwiseVector; ++c) {
          sum[j][c] += weight[c] * window[(u + j) % kChannelsLastRows][c];
        }
      }
    }
  }
}

template <typename T>
__device__ inline void write_pixels(const ChannelsLastParams& p, const ChannelsLastBlock& block,
                                    int filter, int channel, int column, int first_row,
                                    float (&sum)[kChannelsLastRows][kDepthwiseVector]) {
  float bias[kDepthwiseVector] = {};
  const int m = p.t.multiplier;
  if (p.t.bias != nullptr) {
#pragma unroll
    for (int c = 0; c < kDepthwiseVector; ++c) {
      if (channel + c < p.t.channels) {
        bias[c] =
            to_accumulate(static_cast<const T*>(p.t.bias)[(int64_t{channel} + c) * m + filter]);
      }
    }
  }
  T* target = static_cast<T*>(p.t.target) + block.image * p.t.target_n +
              int64_t{block.first_column + column} * p.t.target_w + int64_t{channel} * m + filter;
#pragma unroll
  for (int j = 0; j < kChannelsLastRows; ++j) {
    const int row = first_row + j * p.t.row.lanes;
    if (row >= block.rows) break;
    T* to = target + int64_t{block.first_row + row} * p.t.target_h;
#pragma unroll
    for (int c = 0; c < kDepthwiseVector; ++c) sum[j][c] += bias[c];
    all_at_least(sum[j], p.t.lowest);
    if (p.vector_stores) {
      store_vector(to, sum[j]);
    } else {
#pragma unroll
      for (int c = 0; c < kDepthwiseVector; ++c) {
        if (channel + c < p.t.channels) to[int64_t{c} * m] = round_to<T>(sum[j][c]);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kDepthwiseThreads, 5)
    channels_last_kernel(const __grid_constant__ ChannelsLastParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* pixels = reinterpret_cast<T*>(shared_bytes);
  float* weights = reinterpret_cast<float*>(shared_bytes + p.weights_offset);
  const ChannelsLastBlock block = locate_pixel_block(p);
  const CudaAxis& row = p.t.row;
  const CudaAxis& column = p.t.column;
  const int pitch = p.stage.line_pitch;
  stage_pixels(p, block, pixels);
  commit_copies();
  for (int filter = block.first_filter; filter < block.last_filter; ++filter) {
    if (filter > block.first_filter) __syncthreads();  // the previous weights have been read
    stage_channels_last_weights<T>(p, block, filter, weights);
    wait_copies<0>();
    __syncthreads();
    for (int index = threadIdx.x; index < p.cells; index += kDepthwiseThreads) {
      int rest = index;
      const int chunk_channel = p.by_vectors.split(rest) * kDepthwiseVector;
      const int cell_column = p.by_columns.split(rest);
      const int group = p.by_row_groups.split(rest) * kChannelsLastRows;
      const int first_row = group * row.lanes + rest;  // rest is the lane
      const int channel = block.first_channel + chunk_channel;
      if (cell_column >= block.columns || first_row >= block.rows || channel >= p.t.channels) {
        continue;
      }
      float sum[kChannelsLastRows][kDepthwiseVector] = {};
      const T* cell = pixels + (group * row.period + rest * row.source_step) * pitch +
                      cell_column * column.source_step * p.chunk + chunk_channel;
      for (int s = 0; s < column.taps; ++s) {
        for (int row_class = 0; row_class < row.classes; ++row_class) {
          multiply_channels_last(
              cell + row_class * row.offset_step * pitch + s * column.offset_step * p.chunk,
              row.period * pitch, weights + (row_class * column.taps + s) * p.chunk + chunk_channel,
              row.classes * column.taps * p.chunk, row.count_taps(row_class), sum);
        }
      }
      write_pixels<T>(p, block, filter, channel, cell_column, first_row, sum);
    }
  }
}

}  // namespace convx
