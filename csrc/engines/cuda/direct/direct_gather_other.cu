#include "engines/cuda/direct/direct_gather.h"
#include "engines/cuda/direct/gather_launch.cuh"

namespace convx {

void launch_gather_other(const LaunchSite& site, const GatherFit& fit, const Buffers& buffers) {
  switch (site.problem->dtype) {
    case DType::kFloat64:
      return launch_gather<double>(site, fit, buffers);
    case DType::kFloat16:
      return launch_gather<__half>(site, fit, buffers);
    case DType::kBFloat16:
      return launch_gather<__nv_bfloat16>(site, fit, buffers);
    case DType::kFloat32:
      break;
  }
  throw_launch_error(site, "launching the gather kernel", "no such type");
}

}  // namespace convx
