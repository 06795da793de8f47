#include "cuda/launch.h"
#include "engines/cuda_depthwise/depthwise_launch.h"
#include "engines/cuda_depthwise/pixel_strip_kernel.cuh"

namespace convx {
namespace {

template <typename T>
void launch_pixel_strips(const LaunchSite& site, int64_t blocks, const PixelStripParams& params) {
  const dim3 grid(static_cast<unsigned>(blocks));
  if (params.t.row.source_step == 1) {
    launch_kernel<pixel_strip_kernel<T, 1>>(site, grid, kDepthwiseThreads, 0, params);
  } else {
    launch_kernel<pixel_strip_kernel<T, 2>>(site, grid, kDepthwiseThreads, 0, params);
  }
}

}  // namespace

void launch_depthwise_pixel_strips(const LaunchSite& site, const DepthwiseFit& fit,
                                   const PixelStripParams& params) {
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) launch_pixel_strips<T>(site, fit.pixel_strip.blocks, params);
  });
}

}  // namespace convx
