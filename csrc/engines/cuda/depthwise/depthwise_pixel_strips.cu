#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/pixel_strip_kernel.cuh"

namespace convx {

void launch_depthwise_pixel_strips(const LaunchSite& site, const DepthwiseFit& fit,
                                   const PixelStripParams& params) {
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      launch_listed<kPixelStripShapes>(
          site, kPixelStripShapes[fit.pixel_strip.shape], [&]<PixelStripShape kShape>() {
            launch_kernel<pixel_strip_kernel<T, kShape.taps, kShape.stride>>(
                site, dim3(static_cast<unsigned>(fit.pixel_strip.blocks)), kDepthwiseThreads,
                static_cast<size_t>(pixel_strip_shared_bytes(kShape.taps)), params);
          });
    } else {
      throw_launch_error(site, "launching the channels_last strips", "no such kernel");
    }
  });
}

}  // namespace convx
