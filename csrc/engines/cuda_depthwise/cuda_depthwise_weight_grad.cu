#include <utility>

#include "cuda/launch.h"
#include "engines/cuda_depthwise/depthwise_launch.h"
#include "engines/cuda_depthwise/strip_weight_grad_kernel.cuh"
#include "engines/sum_partials.cuh"

namespace convx {
namespace {

// Launches the kernel of this shape and so many columns if it is the fit's.
template <typename T, int kIndex, int kColumns>
void launch_if_fitted(const LaunchSite& site, const StripWeightGradFit& fit,
                      const StripWeightGradLaunch& launch, bool& launched) {
  if constexpr (has_weight_grad_kernel(kStripShapes[kIndex], kColumns)) {
    if (fit.shape != kIndex || fit.columns != kColumns) return;
    launch_kernel<strip_weight_grad_kernel<T, kIndex, kColumns>>(
        site, dim3(static_cast<unsigned>(launch.blocks)), kDepthwiseThreads,
        static_cast<size_t>(launch.shared_bytes), launch.params);
    launched = true;
  }
}

template <typename T, int... kIndices>
bool launch_parts(const LaunchSite& site, const StripWeightGradFit& fit,
                  const StripWeightGradLaunch& launch, std::integer_sequence<int, kIndices...>) {
  if (!launch.strips) {
    launch_kernel<weight_grad_tap_kernel<T>>(
        site, dim3(static_cast<unsigned>(launch.blocks)), kDepthwiseThreads,
        static_cast<size_t>(launch.shared_bytes), launch.params);
    return true;
  }
  bool launched = false;
  (launch_if_fitted<T, kIndices, 4>(site, fit, launch, launched), ...);
  (launch_if_fitted<T, kIndices, 2>(site, fit, launch, launched), ...);
  return launched;
}

}  // namespace

void launch_strip_weight_grad(const LaunchSite& site, const StripWeightGradFit& fit,
                              const Buffers& buffers) {
  const StripWeightGradLaunch launch = make_weight_grad_launch(*site.problem, fit, buffers);
  constexpr auto kIndices = std::make_integer_sequence<int, kStripShapeCount>{};
  bool launched = false;
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      launched = launch_parts<T>(site, fit, launch, kIndices);
      sum_partials<T>(site, launch.sums);
    }
  });
  if (!launched) throw_launch_error(site, "launching the weight gradient", "no such kernel");
}

}  // namespace convx
