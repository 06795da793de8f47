#include <utility>

#include "cuda/launch.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/strip_weight_grad_kernel.cuh"
#include "engines/cuda/depthwise/weight_grad_sums_kernel.cuh"

namespace convx {
namespace {

// Launches the kernel with this shape and number of columns if the fit asks for it.
template <typename T, int kIndex, int kColumns, bool kAligned>
void launch_if_fitted(const LaunchSite& site, const StripWeightGradFit& fit, bool& launched) {
  if constexpr (has_weight_grad_kernel(kStripShapes[kIndex], kColumns, kAligned)) {
    if (fit.shape != kIndex || fit.columns != kColumns || fit.aligned != kAligned) return;
    launch_kernel<strip_weight_grad_kernel<T, kIndex, kColumns, kAligned>>(
        site, dim3(static_cast<unsigned>(fit.blocks)), kDepthwiseThreads,
        static_cast<size_t>(fit.shared_bytes), fit.params);
    launched = true;
  }
}

template <typename T, int... kIndices>
bool launch_parts(const LaunchSite& site, const StripWeightGradFit& fit,
                  std::integer_sequence<int, kIndices...>) {
  bool launched = false;
  (launch_if_fitted<T, kIndices, 4, true>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 4, false>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 2, true>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 2, false>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 1, true>(site, fit, launched), ...);
  return launched;
}

}  // namespace

int64_t launch_weight_grad_parts(const LaunchSite& site, const StripWeightGradFit& fit,
                                 const Buffers& buffers) {
  const StripWeightGradFit made = make_strip_weight_grad(*site.problem, fit, buffers);
  constexpr auto kIndices = std::make_integer_sequence<int, kStripShapeCount>{};
  bool launched = false;
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) launched = launch_parts<T>(site, made, kIndices);
  });
  if (!launched) throw_launch_error(site, "launching the weight gradient", "no such kernel");
  return fit.parts;
}

void launch_weight_grad_sums(const LaunchSite& site, const WeightGradSums& sums) {
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      launch_early<weight_grad_sums_kernel<T>>(site,
                                               dim3(static_cast<unsigned>(sums.count_blocks())),
                                               kWeightGradSumsThreads, kWeightGradSumsBytes, sums);
    }
  });
}

}  // namespace convx
