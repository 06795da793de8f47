#include "engines/cuda/pixels/pixel_launch.cuh"

namespace convx {

template void launch_pixels<TensorMath::kHalfTf32>(const LaunchSite&, const PixelShape&,
                                                   const PixelParams&);
template void launch_pixels<TensorMath::kHalfIeee>(const LaunchSite&, const PixelShape&,
                                                   const PixelParams&);

}  // namespace convx
