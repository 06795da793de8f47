#include "engines/cuda_pixels/pixel_launch.cuh"

namespace convx {

void launch_pixels_half_ieee(const LaunchSite& site, const PixelShape& shape,
                             const PixelParams& params) {
  launch_pixels<TensorMath::kHalfIeee, PixelTileSize<64, 2, true, true>,
                PixelTileSize<96, 1, true, true>>(site, shape, params);
}

}  // namespace convx
