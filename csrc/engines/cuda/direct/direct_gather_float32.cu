#include "engines/cuda/direct/direct_gather.h"
#include "engines/cuda/direct/gather_launch.cuh"

namespace convx {

void launch_gather_float32(const LaunchSite& site, const GatherFit& fit, const Buffers& buffers) {
  launch_gather<float>(site, fit, buffers);
}

}  // namespace convx
