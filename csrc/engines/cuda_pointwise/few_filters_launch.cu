#include "engines/cuda_pointwise/few_filters_kernel.cuh"
#include "engines/cuda_pointwise/pointwise_passes.h"

namespace convx {

void launch_few_filters(const LaunchSite& site, const FewFiltersFit& fit,
                        const FewFiltersParams& params) {
  switch (site.problem->dtype) {
    case DType::kBFloat16:
      return launch_few_filters_of<__nv_bfloat16>(site, fit, params);
    case DType::kFloat16:
      return launch_few_filters_of<__half>(site, fit, params);
    default:
      return launch_few_filters_of<float>(site, fit, params);
  }
}

}  // namespace convx
