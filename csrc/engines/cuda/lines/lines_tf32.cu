// float32 as TF32, and as scaled fp16 of one component.
#include "engines/cuda/lines/lines_kernel.cuh"

namespace convx {

template void launch_lines<TensorMath::kTf32>(const LaunchSite&, const WindowShape&,
                                              const WindowParams&);
template void launch_lines<TensorMath::kHalfTf32>(const LaunchSite&, const WindowShape&,
                                                  const WindowParams&);

}  // namespace convx
