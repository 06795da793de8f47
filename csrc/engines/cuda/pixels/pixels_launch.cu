// Launches cuda_pixels. The kernels of TF32 and of float32 as three bfloat16 components are
// compiled here, those of 16-bit operands in pixels_16bit.cu.
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_launch.cuh"

namespace convx {

extern template void launch_pixels<TensorMath::kBFloat16>(const LaunchSite&, const PixelShape&,
                                                          const PixelParams&);
extern template void launch_pixels<TensorMath::kFloat16>(const LaunchSite&, const PixelShape&,
                                                         const PixelParams&);
extern template void launch_pixels<TensorMath::kHalfTf32>(const LaunchSite&, const PixelShape&,
                                                          const PixelParams&);
extern template void launch_pixels<TensorMath::kHalfIeee>(const LaunchSite&, const PixelShape&,
                                                          const PixelParams&);

void launch_cuda_pixels(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  launch_phases(
      geometry_of<PixelsPlan>(plan).phases, buffers,
      [&](const PixelFit& fit, int64_t before) {
        return make_pixel_params(*site.problem, fit, buffers, before);
      },
      [&](const PixelShape& shape, const PixelParams& params) {
        visit_math(shape.math,
                   [&]<TensorMath kMath>() { launch_pixels<kMath>(site, shape, params); });
      });
}

}  // namespace convx
