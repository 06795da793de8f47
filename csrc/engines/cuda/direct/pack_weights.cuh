// Rearranges w for the gather kernel: per phase [group][filter tile][c][row tap][column tap]
// [filter of tile] in the accumulation type, with zeros for missing filters. Staging a chunk is
// then a plain copy of 16-byte pieces. Grid: x covers the elements of a phase in the order in which
// they are written, y the phases of the launch.
#pragma once

#include "device/convert.cuh"
#include "engines/cuda/direct/gather_params.h"

namespace convx {

template <typename T>
__global__ void pack_weights_kernel(const __grid_constant__ GatherParams p, const T* w,
                                    accumulate_t<T>* packed, int tile_filters) {
  const AxisParams& row = p.row[blockIdx.y / p.column_phases];
  const AxisParams& column = p.column[blockIdx.y % p.column_phases];
  const int64_t lines = int64_t{p.groups} * p.filter_tiles * p.source_channels;
  const int64_t elements = lines * row.taps * column.taps * tile_filters;
  packed += lines * tile_filters *
            (int64_t{row.tap_prefix} * p.all_column_taps + int64_t{row.taps} * column.tap_prefix);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += step) {
    const int f = static_cast<int>(i % tile_filters);
    int64_t rest = i / tile_filters;
    const int s = column.tap0 + static_cast<int>(rest % column.taps) * column.tap_step;
    rest /= column.taps;
    const int r = row.tap0 + static_cast<int>(rest % row.taps) * row.tap_step;
    rest /= row.taps;
    const int c = static_cast<int>(rest % p.source_channels);
    rest /= p.source_channels;
    const int k = static_cast<int>(rest % p.filter_tiles) * tile_filters + f;
    const int64_t group = rest / p.filter_tiles;
    const int64_t offset = group * p.weight_group_stride + k * p.weight_target_stride +
                           c * p.weight_source_stride + r * p.weight_r_stride +
                           s * p.weight_s_stride;
    packed[i] = k < p.target_channels ? to_accumulate(w[offset]) : accumulate_t<T>{0};
  }
}

}  // namespace convx
