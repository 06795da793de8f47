#include "engines/cuda/pointwise/few_filters_kernel.cuh"
#include "engines/cuda/pointwise/pointwise_passes.h"

namespace convx {

void launch_few_filters(const LaunchSite& site, const FewFiltersFit& fit,
                        const FewFiltersParams& params) {
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) launch_few_filters_of<T>(site, fit, params);
  });
}

}  // namespace convx
