#include "cuda/check.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"

namespace convx {

// Launch the kernels of a phase (pixel_launch.cuh).
template <TensorMath kMath>
void launch_pixels(const LaunchSite& site, const PixelShape& shape, const PixelParams& params);
template <TensorMath kMath>
void launch_mma(const LaunchSite& site, const PixelShape& shape, const PixelParams& params);

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

void launch_cuda_mma(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  for (const PixelFit& phase : geometry_of<MmaPlan>(plan).phases) {
    visit_math(phase.shape.math, [&]<TensorMath kMath>() {
      if constexpr (!is_half(kMath)) {  // cuda_mma does not use scaled fp16
        launch_mma<kMath>(site, phase.shape, make_pixel_params(*site.problem, phase, buffers));
      }
    });
  }
}

}  // namespace convx
