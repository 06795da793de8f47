#include "cuda/launch.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/phase_strip_kernel.cuh"

namespace convx {
namespace {

template <typename T, int kKernel, int kChannels = count_phase_channels(kKernel)>
void launch_phase_strips(const LaunchSite& site, const PhaseStripFit& fit) {
  if (fit.channels == kChannels) {
    const dim3 grid(static_cast<unsigned>(fit.blocks));
    launch_kernel<phase_strip_kernel<T, kKernel, kChannels>>(site, grid, kDepthwiseThreads, 0,
                                                             fit.params);
  } else if constexpr (kChannels > 1) {
    launch_phase_strips<T, kKernel, kChannels / 2>(site, fit);
  }
}

}  // namespace

void launch_depthwise_phase_strips(const LaunchSite& site, const PhaseStripFit& fit,
                                   const Buffers& buffers) {
  const PhaseStripFit made = make_phase_strips(*site.problem, fit, buffers);
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) <= 4) {
      made.kernel == 3 ? launch_phase_strips<T, 3>(site, made)
                       : launch_phase_strips<T, 5>(site, made);
    }
  });
}

}  // namespace convx
