#include "engines/cuda_pixels/pixel_launch.cuh"

namespace convx {

void launch_pixels_half_tf32(const LaunchSite& site, const PixelShape& shape,
                             const PixelParams& params) {
  launch_pixels<TensorMath::kHalfTf32, PixelTileSize<64, 4, true, true>,
                PixelTileSize<96, 2, true, true>>(site, shape, params);
}

}  // namespace convx
