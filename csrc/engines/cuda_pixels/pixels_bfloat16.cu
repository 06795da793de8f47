#include "engines/cuda_pixels/pixel_launch.cuh"

namespace convx {

void launch_pixels_bfloat16(const LaunchSite& site, const PixelShape& shape,
                            const PixelParams& params) {
  launch_pixels<TensorMath::kBFloat16, PixelTileSize<64, 4>, PixelTileSize<64, 2>,
                PixelTileSize<128, 2>, PixelTileSize<256, 1>, PixelTileSize<64, 4, true>,
                PixelTileSize<96, 2, true>, PixelTileSize<128, 2, true>>(site, shape, params);
}

}  // namespace convx
