#include "engines/cuda/grouped/grouped_launch.cuh"

namespace convx {

void launch_grouped_16bit(const LaunchSite& site, const GroupedFit& fit,
                          const GroupedParams& params) {
  if (site.problem->dtype == DType::kFloat16) {
    launch_grouped<__half>(site, fit, params);
  } else {
    launch_grouped<__nv_bfloat16>(site, fit, params);
  }
}

}  // namespace convx
