#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_launch.h"

namespace convx {

void launch_cuda_pixels(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  launch_phases(
      *static_cast<const PixelsPlan*>(plan.shape.get()), buffers,
      [&](const PixelFit& fit, int64_t before) {
        return make_pixel_params(*site.problem, fit, buffers, before);
      },
      [&](const PixelShape& shape, const PixelParams& params) {
        visit_math(shape.math,
                   [&]<TensorMath kMath>() { launch_pixels<kMath>(site, shape, params); });
      });
}

}  // namespace convx
