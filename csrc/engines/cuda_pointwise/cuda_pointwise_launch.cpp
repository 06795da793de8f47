#include "engines/cuda_pointwise/cuda_pointwise_launch.h"

#include "engines/cuda_pointwise/pointwise_passes.h"

namespace convx {

void launch_cuda_pointwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const PointwiseFit& fit = *static_cast<const PointwiseFit*>(plan.shape.get());
  const PointwiseParams params = make_pointwise_params(*site.problem, fit, buffers);
  if (is_split(fit.shape.math)) {
    launch_pointwise_float32(site, fit.shape, params);
  } else {
    launch_pointwise_half(site, fit.shape, params);
  }
}

}  // namespace convx
