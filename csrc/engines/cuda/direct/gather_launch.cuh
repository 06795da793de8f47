// Completes the gather kernel's parameters with its buffers and launches it per slice of phases.
#pragma once

#include <algorithm>
#include <limits>

#include "core/buffers.h"
#include "cuda/launch.h"
#include "engines/cuda/direct/gather_fit.h"
#include "engines/cuda/direct/gather_kernel.cuh"
#include "engines/cuda/direct/pack_weights.cuh"

namespace convx {

template <typename T, typename Tile>
void launch_gather_tile(const LaunchSite& site, GatherParams& params, const GatherShape& shape) {
  const int64_t blocks_per_image_tile = shape.filter_tiles * params.groups * shape.strip_tiles *
                                        shape.row_tiles * params.row_phases * params.column_phases;
  const int64_t limit = std::numeric_limits<int>::max() / blocks_per_image_tile;
  for (int64_t first = 0; first < shape.image_tiles; first += limit) {
    const int64_t count = std::min(limit, shape.image_tiles - first);
    params.first_image = static_cast<int>(first * shape.images);
    const dim3 grid(static_cast<unsigned>(count * blocks_per_image_tile));
    if constexpr (std::is_same_v<T, float>) {
      if (shape.chain_limit > 0) {
        launch_kernel<gather_kernel<T, Tile, true>>(site, grid, Tile::kThreads, shape.shared_bytes,
                                                    params);
        continue;
      }
    }
    launch_kernel<gather_kernel<T, Tile, false>>(site, grid, Tile::kThreads, shape.shared_bytes,
                                                 params);
  }
}

// The tiles of kGatherConfigs, in the same order.
template <typename T>
void launch_gather_phases(const LaunchSite& site, GatherParams& params, const GatherShape& shape) {
  if constexpr (std::is_same_v<T, float>) {
    switch (shape.config) {
      case 0:
        return launch_gather_tile<T, GatherTile<8, 4, 2, 4>>(site, params, shape);
      case 1:
        return launch_gather_tile<T, GatherTile<8, 4, 4, 2>>(site, params, shape);
      case 4:
        return launch_gather_tile<T, GatherTile<8, 2, 1, 4>>(site, params, shape);
    }
  }
  switch (shape.config) {
    case 2:
      return launch_gather_tile<T, GatherTile<8, 4, 2, 2>>(site, params, shape);
    case 3:
      return launch_gather_tile<T, GatherTile<8, 4, 1, 4>>(site, params, shape);
    case 5:
      return launch_gather_tile<T, GatherTile<4, 1, 1, 4>>(site, params, shape);
    case 6:
      return launch_gather_tile<T, GatherTile<1, 1, 1, 4>>(site, params, shape);
  }
  throw_launch_error(site, "launching the gather kernel", "no such tile");
}

template <typename T>
void pack_weights(const LaunchSite& site, const GatherParams& params, const GatherShape& shape,
                  const Buffers& buffers) {
  using Acc = accumulate_t<T>;
  const int64_t elements = shape.packed_bytes / static_cast<int64_t>(sizeof(Acc));
  const dim3 grid(count_loop_blocks(elements, 256), params.row_phases * params.column_phases);
  launch_kernel<pack_weights_kernel<T>>(
      site, grid, 256, 0, params, static_cast<const T*>(buffers.w),
      static_cast<Acc*>(buffers.workspace), kGatherConfigs[shape.config].filters());
}

template <typename T>
void launch_gather(const LaunchSite& site, const GatherFit& fit, const Buffers& buffers) {
  const GatherShape& shape = fit.shape;
  const bool forward = site.problem->pass == Pass::kForward;
  GatherParams params = fit.params;
  params.source = forward ? buffers.x : buffers.y;
  params.target = forward ? buffers.y : buffers.x;
  params.weight = params.packed ? buffers.workspace : buffers.w;
  params.bias = forward && site.problem->has_bias ? buffers.bias : nullptr;
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
