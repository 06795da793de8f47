#include "cuda/launch.h"
#include "engines/cuda/grouped/grouped_launch.h"
#include "engines/cuda/grouped/grouped_pixel_kernel.cuh"

namespace convx {

void launch_grouped_pixels(const LaunchSite& site, const GroupedPixelFit& fit,
                           const GroupedPixelParams& params) {
  const dim3 grid(static_cast<unsigned>(fit.blocks));
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      launch_kernel<grouped_pixel_kernel<T>>(site, grid, kPixelThreads,
                                             static_cast<size_t>(fit.shared_bytes), params);
    }
  });
}

}  // namespace convx
