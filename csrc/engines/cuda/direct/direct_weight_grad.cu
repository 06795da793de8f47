#include "engines/cuda/direct/direct_weight_grad.h"

#include <type_traits>

#include "cuda/launch.h"
#include "engines/cuda/direct/weight_grad_launch.cuh"
#include "engines/cuda/direct/weight_grad_narrow.cuh"
#include "engines/cuda/direct/weight_grad_wide.cuh"

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

}  // namespace

void launch_direct_weight_grad(const LaunchSite& site, const WeightGradFit& fit,
                               const Buffers& buffers) {
  if (kWeightGradConfigs[fit.shape.config].kernel == WeightGradKernel::kPixels) {
    return launch_pixel_weight_grad(site, fit, buffers);
  }
  visit_device_type(site.problem->dtype, [&](auto type) {
    launch_weight_grad<decltype(type)>(site, fit, buffers, launch_tiles<decltype(type)>);
  });
}

}  // namespace convx
