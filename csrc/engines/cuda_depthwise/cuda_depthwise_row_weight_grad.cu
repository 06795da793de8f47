#include <iterator>
#include <utility>

#include "cuda/launch.h"
#include "engines/cuda_depthwise/depthwise_launch.h"
#include "engines/cuda_depthwise/row_weight_grad_kernel.cuh"

namespace convx {

void launch_row_weight_grad(const LaunchSite& site, const RowWeightGradFit& fit,
                            const RowWeightGradParams& params) {
  bool launched = false;
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto launch_if_fitted = [&]<int kCore>() {
      constexpr RowGradCore core = kRowGradCores[kCore];
      if (fit.core != kCore) return;
      launch_kernel<row_weight_grad_kernel<T, core.taps, core.stride>>(
          site, dim3(static_cast<unsigned>(fit.blocks)), fit.threads,
          static_cast<size_t>(fit.shared_bytes), params);
      launched = true;
    };
    if constexpr (sizeof(T) <= 4) {
      [&]<int... kCores>(std::integer_sequence<int, kCores...>) {
        (launch_if_fitted.template operator()<kCores>(), ...);
      }(std::make_integer_sequence<int, std::size(kRowGradCores)>{});
    }
  });
  if (!launched) throw_launch_error(site, "launching the weight gradient", "no such kernel");
}

}  // namespace convx
