#include "engines/cuda/boxes/boxes_launch.cuh"

namespace convx {

template void launch_boxes<TensorMath::kFloat16>(const LaunchSite&, const BoxesShape&,
                                                 const BoxesParams&);

}  // namespace convx
