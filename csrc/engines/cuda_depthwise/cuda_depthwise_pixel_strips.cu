#include <iterator>
#include <utility>

#include "cuda/launch.h"
#include "engines/cuda_depthwise/depthwise_launch.h"
#include "engines/cuda_depthwise/pixel_strip_kernel.cuh"

namespace convx {

void launch_depthwise_pixel_strips(const LaunchSite& site, const DepthwiseFit& fit,
                                   const PixelStripParams& params) {
  bool launched = false;
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto launch_if_fitted = [&]<int kShape>() {
      constexpr PixelStripShape shape = kPixelStripShapes[kShape];
      if (fit.pixel_strip.shape != kShape) return;
      launch_kernel<pixel_strip_kernel<T, shape.taps, shape.stride>>(
          site, dim3(static_cast<unsigned>(fit.pixel_strip.blocks)), kDepthwiseThreads,
          static_cast<size_t>(pixel_strip_shared_bytes(shape.taps)), params);
      launched = true;
    };
    if constexpr (sizeof(T) <= 4) {
      [&]<int... kShapes>(std::integer_sequence<int, kShapes...>) {
        (launch_if_fitted.template operator()<kShapes>(), ...);
      }(std::make_integer_sequence<int, std::size(kPixelStripShapes)>{});
    }
  });
  if (!launched) throw_launch_error(site, "launching the channels_last strips", "no such kernel");
}

}  // namespace convx
