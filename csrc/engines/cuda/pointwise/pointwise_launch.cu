// Launches cuda_pointwise. The kernels of 16-bit operands (tensors, and scaled fp16) are compiled
// here, those of split float32 in pointwise_split.cu.
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pointwise/pointwise_kernel.cuh"

namespace convx {

extern template void launch_pointwise<TensorMath::kTf32>(const LaunchSite&, const PointwiseShape&,
                                                         const PointwiseParams&);
extern template void launch_pointwise<TensorMath::kIeee>(const LaunchSite&, const PointwiseShape&,
                                                         const PointwiseParams&);

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
