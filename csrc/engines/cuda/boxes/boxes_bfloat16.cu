#include "engines/cuda/boxes/boxes_launch.cuh"

namespace convx {

void launch_boxes_bfloat16(const LaunchSite& site, const BoxesShape& shape,
                           const BoxesParams& params) {
  launch_boxes<TensorMath::kBFloat16>(site, shape, params);
}

}  // namespace convx
