#include "engines/cuda/grouped/grouped_launch.cuh"

namespace convx {

void launch_grouped_float32(const LaunchSite& site, const GroupedFit& fit,
                            const GroupedParams& params) {
  launch_grouped<float>(site, fit, params);
}

}  // namespace convx
