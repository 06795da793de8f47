// The gather kernels of float32.
#include "engines/cuda/direct/gather_launch.cuh"

namespace convx {

template void launch_gather<float>(const LaunchSite&, const GatherShape&, const Buffers&);

}  // namespace convx
