#include "engines/cuda/lines/lines_launch.cuh"

namespace convx {

template void launch_lines<TensorMath::kIeee>(const LaunchSite&, const WindowShape&,
                                              const WindowParams&);
template void launch_lines<TensorMath::kHalfIeee>(const LaunchSite&, const WindowShape&,
                                                  const WindowParams&);

}  // namespace convx
