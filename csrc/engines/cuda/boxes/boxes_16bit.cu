// The kernels of cuda_boxes whose operands are 16-bit tensors.
#include "engines/cuda/boxes/boxes_launch.cuh"

namespace convx {

template void launch_boxes<TensorMath::kBFloat16>(const LaunchSite&, const BoxesShape&,
                                                  const BoxesParams&);
template void launch_boxes<TensorMath::kFloat16>(const LaunchSite&, const BoxesShape&,
                                                 const BoxesParams&);

}  // namespace convx
