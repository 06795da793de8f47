#include "engines/cuda_mma/mma_launch.cuh"

namespace convx {

void launch_mma_ieee(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  launch_mma<TensorMath::kIeee, MmaTileSize<32, 2>, MmaTileSize<64, 1>, MmaTileSize<64, 2>,
             MmaTileSize<64, 2, true>>(site, shape, params);
}

}  // namespace convx
