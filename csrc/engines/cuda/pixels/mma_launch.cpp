#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_launch.h"

namespace convx {

void launch_cuda_mma(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  for (const PixelFit& phase : *static_cast<const MmaPlan*>(plan.shape.get())) {
    visit_math(phase.shape.math, [&]<TensorMath kMath>() {
      if constexpr (!is_half(kMath)) {  // cuda_mma does not use scaled fp16
        launch_mma<kMath>(site, phase.shape, make_pixel_params(*site.problem, phase, buffers));
      }
    });
  }
}

}  // namespace convx
