#include "engines/cuda/boxes/boxes_launch.cuh"

namespace convx {

template void launch_boxes<TensorMath::kTf32>(const LaunchSite&, const BoxesShape&,
                                              const BoxesParams&);

}  // namespace convx
