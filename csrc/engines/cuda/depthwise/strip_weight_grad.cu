// Launches the NCHW strips of weight gradients.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/depthwise/strip_weight_grad_kernel.cuh"

namespace convx {

void launch_weight_grad(const LaunchSite& site, const StripWeightGradFit& fit,
                        const Buffers& buffers) {
  const StripWeightGradFit made = make_strip_weight_grad(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const dim3 grid(static_cast<unsigned>(made.blocks));
    if (!made.aligned) {
      constexpr size_t kBytes = kDepthwiseThreads / 32 * kMostStripColumnTaps * sizeof(float);
      return launch_kernel<unaligned_weight_grad_kernel<T>>(site, grid, kDepthwiseThreads, kBytes,
                                                            made.params, kStripShapes[made.shape],
                                                            made.columns);
    }
    const StripKernel wanted{made.shape, made.columns};
    launch_listed<kStripKernels>(site, wanted, [&]<StripKernel kKernel>() {
      if constexpr (has_weight_grad_kernel(kStripShapes[kKernel.shape], kKernel.columns)) {
        launch_kernel<strip_weight_grad_kernel<T, kKernel.shape, kKernel.columns>>(
            site, grid, kDepthwiseThreads, static_cast<size_t>(made.shared_bytes), made.params);
      }
    });
  });
  add_partial_sums(site, fit.splits, buffers);
}

}  // namespace convx
