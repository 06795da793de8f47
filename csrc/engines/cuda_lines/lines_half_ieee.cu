#include "engines/cuda_lines/lines_launch.cuh"

namespace convx {

void launch_lines_half_ieee(const LaunchSite& site, const WindowShape& shape,
                            const WindowParams& params) {
  launch_lines<TensorMath::kHalfIeee, 96, 64>(site, shape, params);
}

}  // namespace convx
