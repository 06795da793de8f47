// Launches the weight gradients of weight_grad_pixels.cuh.
#include <type_traits>

#include "engines/cuda/direct/direct_weight_grad.h"
#include "engines/cuda/direct/weight_grad_launch.cuh"
#include "engines/cuda/direct/weight_grad_pixels.cuh"

namespace convx {
namespace {

template <int kFilters, typename T>
void launch_pixel_tiles(const LaunchSite& site, const WeightGradParams& params, unsigned blocks) {
  constexpr size_t kBytes = kPixelGradThreads / 32 * kFilters * kPixelColumns * sizeof(float);
  if (params.x_pitch > 0 && params.x_has_units) {
    launch_kernel<weight_grad_pixels_kernel<T, kFilters, true>>(site, blocks, kPixelGradThreads,
                                                                kBytes, params);
  } else {
    launch_kernel<weight_grad_pixels_kernel<T, kFilters, false>>(site, blocks, kPixelGradThreads,
                                                                 kBytes, params);
  }
}

// The tiles of kWeightGradConfigs with this kernel.
template <typename T>
void launch_config(const LaunchSite& site, const WeightGradParams& params, int config) {
  const unsigned blocks = static_cast<unsigned>(params.tiles) * params.splits;
  switch (kWeightGradConfigs[config].filters) {
    case 2:
      return launch_pixel_tiles<2, T>(site, params, blocks);
    case 4:
      return launch_pixel_tiles<4, T>(site, params, blocks);
    case 8:
      return launch_pixel_tiles<8, T>(site, params, blocks);
  }
  throw_launch_error(site, "launching the weight gradient by pixels", "no such tile");
}

}  // namespace

void launch_pixel_weight_grad(const LaunchSite& site, const WeightGradFit& fit,
                              const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, double>) {
      launch_weight_grad<T>(site, fit, buffers, launch_config<T>);
    }
  });
}

}  // namespace convx
