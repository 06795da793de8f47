#include "engines/cuda/direct/gather_launch.cuh"

namespace convx {

void launch_gather_other(const LaunchSite& site, const GatherShape& shape, const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&]<typename T>(T) {
    if constexpr (!std::is_same_v<T, float>) launch_gather<T>(site, shape, buffers);
  });
}

}  // namespace convx
