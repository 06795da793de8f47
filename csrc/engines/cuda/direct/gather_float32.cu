#include "engines/cuda/direct/gather_launch.cuh"

namespace convx {

void launch_gather_float32(const LaunchSite& site, const GatherShape& shape,
                           const Buffers& buffers) {
  launch_gather<float>(site, shape, buffers);
}

}  // namespace convx
