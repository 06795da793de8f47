#include "engines/cuda/boxes/boxes_launch.cuh"

namespace convx {

void launch_boxes_float16(const LaunchSite& site, const BoxesShape& shape,
                          const BoxesParams& params) {
  launch_boxes<TensorMath::kFloat16>(site, shape, params);
}

}  // namespace convx
