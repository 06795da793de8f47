#include "engines/cuda_wgmma/wgmma_launch.cuh"

namespace convx {

void launch_wgmma_float16(const LaunchSite& site, const WindowShape& shape,
                          const WindowParams& params) {
  launch_wgmma<TensorMath::kFloat16, 256, 224, 192, 160, 128, 96, 64>(site, shape, params);
}

}  // namespace convx
