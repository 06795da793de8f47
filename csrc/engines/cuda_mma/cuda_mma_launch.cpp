#include "engines/cuda_mma/cuda_mma_launch.h"

#include "engines/cuda_mma/mma_fit.h"
#include "engines/cuda_mma/mma_passes.h"

namespace convx {
namespace {

void launch_phase(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  switch (shape.math) {
    case TensorMath::kTf32:
      return launch_mma_tf32(site, shape, params);
    case TensorMath::kIeee:
      return launch_mma_ieee(site, shape, params);
    case TensorMath::kBFloat16:
      return launch_mma_bfloat16(site, shape, params);
    case TensorMath::kFloat16:
      return launch_mma_float16(site, shape, params);
    case TensorMath::kHalfTf32:
    case TensorMath::kHalfIeee:
      break;  // cuda_mma does not use scaled fp16
  }
}

}  // namespace

void launch_cuda_mma(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  for (const PixelFit& phase : static_cast<const MmaFit*>(plan.shape.get())->phases) {
    launch_phase(site, phase.shape, make_pixel_params(*site.problem, phase, buffers));
  }
}

}  // namespace convx
