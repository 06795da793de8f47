#include "engines/cuda_pixels/cuda_pixels_launch.h"

#include "engines/cuda_pixels/pixel_passes.h"

namespace convx {

void launch_cuda_pixels(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const PixelFit& fit = *static_cast<const PixelFit*>(plan.shape.get());
  const PixelParams params = make_pixel_params(*site.problem, fit, buffers);
  switch (fit.shape.math) {
    case TensorMath::kTf32:
      return launch_pixels_tf32(site, fit.shape, params);
    case TensorMath::kIeee:
      return launch_pixels_ieee(site, fit.shape, params);
    case TensorMath::kBFloat16:
      return launch_pixels_bfloat16(site, fit.shape, params);
    case TensorMath::kFloat16:
      return launch_pixels_float16(site, fit.shape, params);
    case TensorMath::kHalfTf32:
    case TensorMath::kHalfIeee:
      break;  // not fitted here
  }
}

}  // namespace convx
