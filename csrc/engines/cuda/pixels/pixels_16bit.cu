// The wgmma kernels whose operands are 16-bit tensors or scaled fp16.
#include "engines/cuda/pixels/pixel_launch.cuh"

namespace convx {

template void launch_pixels<TensorMath::kBFloat16>(const LaunchSite&, const PixelShape&,
                                                   const PixelParams&);
template void launch_pixels<TensorMath::kFloat16>(const LaunchSite&, const PixelShape&,
                                                  const PixelParams&);
template void launch_pixels<TensorMath::kHalfTf32>(const LaunchSite&, const PixelShape&,
                                                   const PixelParams&);
template void launch_pixels<TensorMath::kHalfIeee>(const LaunchSite&, const PixelShape&,
                                                   const PixelParams&);

}  // namespace convx
