#include "engines/cuda/pointwise/pointwise_launch.cuh"

namespace convx {

void launch_pointwise_split(const LaunchSite& site, const PointwiseShape& shape,
                            const PointwiseParams& params) {
  if (shape.math == TensorMath::kTf32) {
    launch_pointwise<TensorMath::kTf32>(site, shape, params);
  } else {
    launch_pointwise<TensorMath::kIeee>(site, shape, params);
  }
}

}  // namespace convx
