#include "engines/cuda/lines/lines_launch.cuh"

namespace convx {

template void launch_lines<TensorMath::kTf32>(const LaunchSite&, const WindowShape&,
                                              const WindowParams&);

}  // namespace convx
