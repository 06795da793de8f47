// float32 as three bfloat16 components, and as scaled fp16 of two.
#include "engines/cuda/lines/lines_kernel.cuh"

namespace convx {

template void launch_lines<TensorMath::kIeee>(const LaunchSite&, const WindowShape&,
                                              const WindowParams&);
template void launch_lines<TensorMath::kHalfIeee>(const LaunchSite&, const WindowShape&,
                                                  const WindowParams&);

}  // namespace convx
