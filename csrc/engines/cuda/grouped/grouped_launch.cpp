#include "engines/cuda/grouped/grouped_launch.h"
#include "engines/cuda/cuda_engines.h"

namespace convx {

void launch_cuda_grouped(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const GroupedFit& fit = *static_cast<const GroupedFit*>(plan.shape.get());
  if (fit.pixels.blocks > 0) {
    return launch_grouped_pixels(site, fit.pixels,
                                 make_grouped_pixel_params(*site.problem, fit.pixels, buffers));
  }
  if (fit.mma.blocks > 0) {
    return launch_grouped_mma(site, fit.mma,
                              make_grouped_mma_params(*site.problem, fit.mma, buffers));
  }
  const GroupedParams params = make_grouped_params(*site.problem, fit, buffers);
  if (site.problem->dtype == DType::kFloat32) {
    launch_grouped_float32(site, fit, params);
  } else {
    launch_grouped_16bit(site, fit, params);
  }
}

}  // namespace convx
