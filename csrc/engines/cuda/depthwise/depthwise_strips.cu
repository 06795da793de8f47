#include <utility>

#include "cuda/launch.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/strip_kernel.cuh"

namespace convx {
namespace {

// Launches the kernel with this shape and number of columns if the fit asks for it.
template <typename T, int kIndex, int kColumns>
void launch_if_fitted(const LaunchSite& site, const StripFit& fit, bool& launched) {
  if constexpr (has_strip_kernel(kStripShapes[kIndex], sizeof(T), kColumns)) {
    if (fit.shape != kIndex || fit.columns != kColumns) return;
    launch_kernel<strip_kernel<T, kIndex, kColumns>>(site, dim3(static_cast<unsigned>(fit.blocks)),
                                                     kDepthwiseThreads, 0, fit.params);
    launched = true;
  }
}

template <typename T, int... kIndices>
bool launch_strips(const LaunchSite& site, const StripFit& fit,
                   std::integer_sequence<int, kIndices...>) {
  bool launched = false;
  (launch_if_fitted<T, kIndices, 8>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 4>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 2>(site, fit, launched), ...);
  (launch_if_fitted<T, kIndices, 1>(site, fit, launched), ...);
  return launched;
}

}  // namespace

void launch_depthwise_strips(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers) {
  const StripFit strips = make_strip_launch(*site.problem, fit, buffers);
  constexpr auto kIndices = std::make_integer_sequence<int, kStripShapeCount>{};
  bool launched = false;
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) launched = launch_strips<T>(site, strips, kIndices);
  });
  if (!launched) throw_launch_error(site, "launching the strip kernel", "no such kernel");
}

}  // namespace convx
