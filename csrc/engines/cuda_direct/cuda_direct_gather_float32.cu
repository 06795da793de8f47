#include "engines/cuda_direct/cuda_direct_gather.h"
#include "engines/cuda_direct/gather_launch.cuh"

namespace convx {

void launch_gather_float32(const LaunchSite& site, const GatherFit& fit, const Buffers& buffers) {
  launch_gather<float>(site, fit, buffers);
}

}  // namespace convx
