#include "engines/cuda_pixels/cuda_pixels_launch.h"

#include "engines/cuda_pixels/cuda_pixels_plan.h"
#include "engines/cuda_pixels/pixel_passes.h"

namespace convx {
namespace {

void launch(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  switch (shape.math) {
    case TensorMath::kTf32:
      return launch_pixels_tf32(site, shape, params);
    case TensorMath::kIeee:
      return launch_pixels_ieee(site, shape, params);
    case TensorMath::kBFloat16:
      return launch_pixels_bfloat16(site, shape, params);
    case TensorMath::kFloat16:
      return launch_pixels_float16(site, shape, params);
    case TensorMath::kHalfTf32:
      return launch_pixels_half_tf32(site, shape, params);
    case TensorMath::kHalfIeee:
      return launch_pixels_half_ieee(site, shape, params);
  }
}

}  // namespace

void launch_cuda_pixels(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  launch_phases(
      *static_cast<const PixelsPlan*>(plan.shape.get()), buffers,
      [&](const PixelFit& fit, int64_t before) {
        return make_pixel_params(*site.problem, fit, buffers, before);
      },
      [&](const PixelShape& shape, const PixelParams& params) { launch(site, shape, params); });
}

}  // namespace convx
