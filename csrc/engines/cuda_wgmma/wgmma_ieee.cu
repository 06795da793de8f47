#include "engines/cuda_wgmma/wgmma_launch.cuh"

namespace convx {

void launch_wgmma_ieee(const LaunchSite& site, const WindowShape& shape,
                       const WindowParams& params) {
  launch_wgmma<TensorMath::kIeee, 128, 96, 64>(site, shape, params);
}

}  // namespace convx
