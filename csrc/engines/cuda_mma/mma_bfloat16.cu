#include "engines/cuda_mma/mma_launch.cuh"

namespace convx {

void launch_mma_bfloat16(const LaunchSite& site, const PixelShape& shape,
                         const PixelParams& params) {
  launch_mma<TensorMath::kBFloat16, MmaTileSize<32, 2>, MmaTileSize<64, 1>, MmaTileSize<64, 2>,
             MmaTileSize<128, 2>, MmaTileSize<64, 2, true>>(site, shape, params);
}

}  // namespace convx
