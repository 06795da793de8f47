#include "engines/cuda/pointwise/pointwise_launch.cuh"
#include "kernels/measure_halves.cuh"

namespace convx {

void launch_pointwise_half(const LaunchSite& site, const PointwiseShape& shape,
                           const PointwiseParams& params) {
  measure(site, params);
  if (shape.math == TensorMath::kHalfTf32) {
    launch_pointwise<TensorMath::kHalfTf32>(site, shape, params);
  } else {
    launch_pointwise<TensorMath::kHalfIeee>(site, shape, params);
  }
}

}  // namespace convx
