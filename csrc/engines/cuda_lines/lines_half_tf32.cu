#include "engines/cuda_lines/lines_launch.cuh"

namespace convx {

void launch_lines_half_tf32(const LaunchSite& site, const WindowShape& shape,
                            const WindowParams& params) {
  launch_lines<TensorMath::kHalfTf32, 256, 224, 192, 128, 64>(site, shape, params);
}

}  // namespace convx
