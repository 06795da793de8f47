#include "engines/cuda/pixels/pixel_launch.cuh"

namespace convx {

template void launch_mma<TensorMath::kBFloat16>(const LaunchSite&, const PixelShape&,
                                                const PixelParams&);
template void launch_mma<TensorMath::kFloat16>(const LaunchSite&, const PixelShape&,
                                               const PixelParams&);

}  // namespace convx
