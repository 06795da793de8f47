// Completes the gather kernel's parameters with its buffers and launches it per slice of phases.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/plan.h"
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/direct/gather_geometry.h"
#include "engines/cuda/direct/gather_kernel.cuh"

namespace convx {

// Rearranges w for the gather kernel: per phase [group][filter tile][c][row tap][column tap]
// [filter of tile] in the accumulation type, with zeros for missing filters. Staging a chunk is
// then a plain copy of 16-byte pieces. Grid: x covers the elements of a phase in the order in which
// they are written, y the phases of the launch.
template <typename Acc>
__global__ void pack_weights_kernel(const __grid_constant__ GatherParams p, DType dtype,
                                    const void* w, Acc* packed, int tile_filters) {
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
    packed[i] = k < p.target_channels ? load_as<Acc>(dtype, w, offset) : Acc{0};
  }
}

template <typename T, typename Tile>
void launch_gather_tile(const LaunchSite& site, GatherParams& params, const GatherShape& shape) {
  const int64_t blocks_per_image_tile = int64_t{params.filter_tiles} * params.groups *
                                        params.strip_tiles * params.row_tiles * params.row_phases *
                                        params.column_phases;
  const int64_t limit = std::numeric_limits<int>::max() / blocks_per_image_tile;
  for (int64_t first = 0; first < shape.image_tiles; first += limit) {
    const int64_t count = std::min(limit, shape.image_tiles - first);
    params.first_image = static_cast<int>(first * params.tile_images);
    const Grid grid(count * blocks_per_image_tile);
    if constexpr (std::is_same_v<T, float>) {
      if (params.chain_limit > 0) {
        launch_kernel<gather_kernel<T, Tile, true>>(site, grid, Tile::kThreads, shape.shared_bytes,
                                                    params);
        continue;
      }
    }
    launch_kernel<gather_kernel<T, Tile, false>>(site, grid, Tile::kThreads, shape.shared_bytes,
                                                 params);
  }
}

template <typename T>
void launch_gather_phases(const LaunchSite& site, GatherParams& params, const GatherShape& shape) {
  launch_listed<kGatherConfigs>(site, kGatherConfigs[shape.config], [&]<GatherConfig kConfig>() {
    if constexpr (!kConfig.float32_only || std::is_same_v<T, float>) {
      launch_gather_tile<T, GatherTile<kConfig>>(site, params, shape);
    } else {
      throw_launch_error(site, "choosing a kernel", "the tile is for float32 only");
    }
  });
}

template <typename T>
void pack_weights(const LaunchSite& site, const GatherParams& params, const GatherShape& shape,
                  const Buffers& buffers) {
  using Acc = accumulate_t<T>;
  const int64_t elements = shape.packed_bytes / static_cast<int64_t>(sizeof(Acc));
  const Grid grid(count_loop_blocks(elements, 256), params.row_phases * params.column_phases);
  launch_kernel<pack_weights_kernel<Acc>>(
      site, grid, 256, 0, params, site.problem->dtype, static_cast<const void*>(buffers.w),
      static_cast<Acc*>(buffers.workspace), kGatherConfigs[shape.config].filters());
}

template <typename T>
void launch_gather(const LaunchSite& site, const GatherShape& shape, const Buffers& buffers) {
  const bool forward = site.problem->pass == Pass::kForward;
  GatherParams params = shape.params;
  params.source = forward ? buffers.x : buffers.y;
  params.target = forward ? buffers.y : buffers.x;
  params.weight = params.packed ? buffers.workspace : buffers.w;
  params.bias = forward && site.problem->epilogue.has_bias ? buffers.bias : nullptr;
  params.lowest = find_lowest(*site.problem);
  const int64_t rows = static_cast<int64_t>(shape.rows_axes.size());
  const int64_t columns = static_cast<int64_t>(shape.columns_axes.size());
  for (int64_t row = 0; row < rows; row += kPhasesPerLaunch) {
    if (row > 0) set_row_phases(params, shape, row);
    for (int64_t column = 0; column < columns; column += kPhasesPerLaunch) {
      if (columns > kPhasesPerLaunch) set_column_phases(params, shape, column);
      if (params.packed) pack_weights<T>(site, params, shape, buffers);
      launch_gather_phases<T>(site, params, shape);
    }
  }
}

}  // namespace convx
