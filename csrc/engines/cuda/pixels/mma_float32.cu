#include "engines/cuda/pixels/pixel_launch.cuh"

namespace convx {

template void launch_mma<TensorMath::kTf32>(const LaunchSite&, const PixelShape&,
                                            const PixelParams&);
template void launch_mma<TensorMath::kIeee>(const LaunchSite&, const PixelShape&,
                                            const PixelParams&);

}  // namespace convx
