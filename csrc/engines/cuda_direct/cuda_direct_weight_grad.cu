#include "engines/cuda_direct/cuda_direct_weight_grad.h"

#include <algorithm>
#include <type_traits>

#include "cuda/launch.h"
#include "engines/cuda_direct/weight_grad_narrow.cuh"
#include "engines/cuda_direct/weight_grad_wide.cuh"

namespace convx {
namespace {

template <typename T, typename Tile>
void launch_wide(const LaunchSite& site, const WeightGradParams& params, unsigned blocks) {
  constexpr int kBytes = Tile::template kSharedBytes<accumulate_t<T>>;
  launch_kernel<weight_grad_wide_kernel<T, Tile>>(site, blocks, Tile::kThreads, kBytes, params);
}

// The tiles of kWeightGradConfigs, in the same order.
template <typename T>
void launch_tiles(const LaunchSite& site, const WeightGradParams& params, int config) {
  const unsigned blocks = static_cast<unsigned>(params.tiles) * params.splits;
  if constexpr (std::is_same_v<T, float>) {
    if (config == 0) return launch_wide<T, WideTile<4, 2>>(site, params, blocks);
    if (config == 2) return launch_wide<T, WideTile<4, 1>>(site, params, blocks);
  }
  switch (config) {
    case 1:
      return launch_wide<T, WideTile<2, 2>>(site, params, blocks);
    case 3:
      return launch_kernel<weight_grad_narrow_kernel<T, 4, 8>>(site, blocks, kNarrowThreads, 0,
                                                               params);
    case 4:
      return launch_kernel<weight_grad_narrow_kernel<T, 1, 16>>(site, blocks, kNarrowThreads, 0,
                                                                params);
  }
  throw_launch_error(site, "launching the weight gradient", "no such tile");
}

template <typename T>
void launch_typed(const LaunchSite& site, const WeightGradFit& fit, const Buffers& buffers) {
  const WeightGradShape& shape = fit.shape;
  const WeightGradConfig& config = kWeightGradConfigs[shape.config];
  WeightGradParams params = fit.params;
  params.x = buffers.x;
  params.y = buffers.y;
  params.w = buffers.w;
  params.partial = buffers.workspace;
  const int64_t most_tiles = std::min<int64_t>(shape.tiles_per_launch, (1 << 30) / shape.split);
  for (int64_t first = 0; first < shape.tiles; first += most_tiles) {
    params.first_tile = first;
    params.tiles = static_cast<int>(std::min(most_tiles, shape.tiles - first));
    launch_tiles<T>(site, params, shape.config);
    if (shape.direct) continue;
    const int64_t elements = int64_t{params.tiles} * config.filters * config.columns;
    launch_kernel<reduce_splits_kernel<T>>(site, count_loop_blocks(elements, 128), 128, 0, params,
                                           config.filters, config.columns);
  }
}

}  // namespace

void launch_direct_weight_grad(const LaunchSite& site, const WeightGradFit& fit,
                               const Buffers& buffers) {
  visit_device_type(site.problem->dtype,
                    [&](auto type) { launch_typed<decltype(type)>(site, fit, buffers); });
}

}  // namespace convx
