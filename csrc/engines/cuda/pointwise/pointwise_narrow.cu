#include "engines/cuda/pointwise/pointwise_launch.cuh"

namespace convx {

void launch_pointwise_narrow(const LaunchSite& site, const PointwiseShape& shape,
                             const PointwiseParams& params) {
  if (shape.math == TensorMath::kBFloat16) {
    launch_pointwise<TensorMath::kBFloat16>(site, shape, params);
  } else {
    launch_pointwise<TensorMath::kFloat16>(site, shape, params);
  }
}

}  // namespace convx
