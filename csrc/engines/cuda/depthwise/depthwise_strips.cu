// Launches the kernels whose threads go down strips: NCHW, channels_last, and input gradients with
// stride 2.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/depthwise/phase_strip_kernel.cuh"
#include "engines/cuda/depthwise/pixel_strip_kernel.cuh"
#include "engines/cuda/depthwise/strip_kernel.cuh"

namespace convx {

void launch_strips(const LaunchSite& site, const StripFit& fit) {
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const StripKernel wanted{fit.shape, fit.columns};
    launch_listed<kStripKernels>(site, wanted, [&]<StripKernel kKernel>() {
      if constexpr (has_strip_kernel(kStripShapes[kKernel.shape], sizeof(T), kKernel.columns)) {
        launch_kernel<strip_kernel<T, kKernel.shape, kKernel.columns>>(
            site, fit.blocks, kDepthwiseThreads, 0, fit.params);
      }
    });
  });
}

void launch_strips(const LaunchSite& site, const PixelStripFit& fit) {
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const PixelStripShape& wanted = kPixelStripShapes[fit.shape];
    launch_listed<kPixelStripShapes>(site, wanted, [&]<PixelStripShape kShape>() {
      launch_kernel<pixel_strip_kernel<T, kShape.taps, kShape.stride>>(
          site, fit.blocks, kDepthwiseThreads, pixel_strip_shared_bytes(kShape.taps), fit.params);
    });
  });
}

void launch_strips(const LaunchSite& site, const PhaseStripFit& fit) {
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const PhaseStripKernel wanted{fit.kernel, fit.channels};
    launch_listed<kPhaseStripKernels>(site, wanted, [&]<PhaseStripKernel kKernel>() {
      launch_kernel<phase_strip_kernel<T, kKernel.kernel, kKernel.channels>>(
          site, fit.blocks, kDepthwiseThreads, 0, fit.params);
    });
  });
}

}  // namespace convx
