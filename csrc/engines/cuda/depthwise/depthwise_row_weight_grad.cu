#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/row_weight_grad_kernel.cuh"

namespace convx {

void launch_row_weight_grad(const LaunchSite& site, const RowWeightGradFit& fit,
                            const RowWeightGradParams& params) {
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      launch_listed<kRowGradCores>(site, kRowGradCores[fit.core], [&]<RowGradCore kCore>() {
        launch_kernel<row_weight_grad_kernel<T, kCore.taps, kCore.stride>>(
            site, dim3(static_cast<unsigned>(fit.blocks)), fit.threads,
            static_cast<size_t>(fit.shared_bytes), params);
      });
    } else {
      throw_launch_error(site, "launching the weight gradient", "no such kernel");
    }
  });
}

}  // namespace convx
