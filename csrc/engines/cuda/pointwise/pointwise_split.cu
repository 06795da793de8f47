#include "engines/cuda/pointwise/pointwise_kernel.cuh"

namespace convx {

template void launch_pointwise<TensorMath::kTf32>(const LaunchSite&, const PointwiseShape&,
                                                  const PointwiseParams&);
template void launch_pointwise<TensorMath::kIeee>(const LaunchSite&, const PointwiseShape&,
                                                  const PointwiseParams&);

}  // namespace convx
