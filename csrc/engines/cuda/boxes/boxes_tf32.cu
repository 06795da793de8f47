#include "engines/cuda/boxes/boxes_launch.cuh"

namespace convx {

void launch_boxes_tf32(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& params) {
  launch_boxes<TensorMath::kTf32>(site, shape, params);
}

}  // namespace convx
