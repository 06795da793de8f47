// Launches a weight gradient: its tiles, as many at a time as the workspace holds partial sums for,
// and the reduction of their split-K slices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/buffers.h"
#include "cuda/launch.h"
#include "engines/cuda/direct/weight_grad_common.cuh"
#include "engines/cuda/direct/weight_grad_fit.h"

namespace convx {

// launch_tiles(site, params, config) launches the kernel of a configuration for params.tiles tiles.
template <typename T, typename LaunchTiles>
void launch_weight_grad(const LaunchSite& site, const WeightGradFit& fit, const Buffers& buffers,
                        const LaunchTiles& launch_tiles) {
  const WeightGradShape& shape = fit.shape;
  const WeightGradConfig& config = kWeightGradConfigs[shape.config];
  WeightGradParams params = fit.params;
  params.x = buffers.x;
  params.y = buffers.y;
  params.w = buffers.w;
  if (shape.is_transposed) std::swap(params.x, params.y);
  params.x_has_units = reinterpret_cast<uintptr_t>(params.x) % 16 == 0;
  params.partial = buffers.workspace;
  const int64_t most_tiles = std::min<int64_t>(shape.tiles_per_launch, (1 << 30) / shape.split);
  for (int64_t first = 0; first < shape.tiles; first += most_tiles) {
    params.first_tile = first;
    params.tiles = static_cast<int>(std::min(most_tiles, shape.tiles - first));
    launch_tiles(site, params, shape.config);
    if (shape.direct) continue;
    const int64_t elements = int64_t{params.tiles} * config.filters * config.columns;
    const int lanes = count_reduce_lanes(params.splits);
    launch_kernel<reduce_splits_kernel<T>>(
        site, count_loop_blocks(elements * lanes, kReduceThreads), kReduceThreads,
        kReduceThreads * sizeof(double), params, config.filters, config.columns, lanes);
  }
}

}  // namespace convx
