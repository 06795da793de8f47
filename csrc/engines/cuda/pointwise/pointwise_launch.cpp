#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pointwise/pointwise_passes.h"

namespace convx {

void launch_cuda_pointwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& pointwise = *static_cast<const PointwisePlan*>(plan.shape.get());
  if (pointwise.few) {
    const auto params = make_few_filters_params(*site.problem, *pointwise.few, buffers);
    if (params) return launch_few_filters(site, *pointwise.few, *params);
  }
  launch_halves(
      pointwise.products, buffers,
      [&](const PointwiseFit& fit) { return make_pointwise_params(*site.problem, fit, buffers); },
      [&](const PointwiseShape& shape, const PointwiseParams& params) {
        if (is_half(shape.math)) return launch_pointwise_half(site, shape, params);
        if (is_split(shape.math)) return launch_pointwise_split(site, shape, params);
        launch_pointwise_narrow(site, shape, params);
      });
}

}  // namespace convx
