// 16-bit tensors.
#include "engines/cuda/lines/lines_kernel.cuh"

namespace convx {

template void launch_lines<TensorMath::kBFloat16>(const LaunchSite&, const WindowShape&,
                                                  const WindowParams&);
template void launch_lines<TensorMath::kFloat16>(const LaunchSite&, const WindowShape&,
                                                 const WindowParams&);

}  // namespace convx
