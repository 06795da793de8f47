#include "engines/cuda_pointwise/cuda_pointwise_launch.h"

#include "engines/cuda_pointwise/pointwise_passes.h"

namespace convx {

void launch_cuda_pointwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& pointwise = *static_cast<const PointwisePlan*>(plan.shape.get());
  const PointwiseShape& shape = pointwise.exact.shape;
  PointwiseParams exact = make_pointwise_params(*site.problem, pointwise.exact, buffers);
  if (pointwise.half) {
    PointwiseParams half = make_pointwise_params(*site.problem, *pointwise.half, buffers);
    half.scales = static_cast<HalfScales*>(buffers.workspace);
    half.gate = exact.gate = &half.scales->unfit;
    half.runs_at_zero = true;
    launch_pointwise_half(site, pointwise.half->shape, half);
  }
  if (is_split(shape.math)) {
    launch_pointwise_split(site, shape, exact);
  } else {
    launch_pointwise_narrow(site, shape, exact);
  }
}

}  // namespace convx
