#include "engines/cuda_direct/cuda_direct_gather.h"
#include "engines/cuda_direct/gather_launch.cuh"

namespace convx {

void launch_gather_float32(const LaunchSite& site, const GatherShape& shape, const Buffers& buffers,
                           bool packed) {
  launch_gather<float>(site, shape, buffers, packed);
}

}  // namespace convx
