#include "engines/cuda_mma/mma_launch.cuh"

namespace convx {

void launch_mma_tf32(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  launch_mma<TensorMath::kTf32, MmaTileSize<32, 2>, MmaTileSize<64, 1>, MmaTileSize<64, 2>,
             MmaTileSize<128, 2>, MmaTileSize<64, 2, true>>(site, shape, params);
}

}  // namespace convx
