// Launches cuda_pointwise.
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pointwise/pointwise_kernel.cuh"

namespace convx {

void launch_cuda_pointwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& pointwise = geometry_of<PointwisePlan>(plan);
  if (pointwise.few) {
    const auto params = make_few_filters_params(*site.problem, *pointwise.few, buffers);
    if (params) return launch_few_filters(site, *pointwise.few, *params);
  }
  launch_halves(
      pointwise.products, buffers,
      [&](const PointwiseFit& fit) { return make_pointwise_params(*site.problem, fit, buffers); },
      [&](const PointwiseShape& shape, const PointwiseParams& params) {
        visit_math(shape.math,
                   [&]<TensorMath kMath>() { launch_pointwise<kMath>(site, shape, params); });
      });
}

}  // namespace convx
