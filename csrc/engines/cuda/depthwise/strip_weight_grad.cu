// Launches the NCHW strips of weight gradients.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/float_types.cuh"
#include "engines/cuda/depthwise/strip_weight_grad_kernel.cuh"

namespace convx {

void launch_weight_grad(const LaunchSite& site, const StripWeightGradFit& fit,
                        const Buffers& buffers) {
  const StripWeightGradFit made = make_strip_weight_grad(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const StripGradKernel wanted{made.shape, made.columns, made.aligned};
    launch_listed<kStripGradKernels>(site, wanted, [&]<StripGradKernel kKernel>() {
      if constexpr (kKernel.is_compiled()) {
        launch_kernel<strip_weight_grad_kernel<T, kKernel.shape, kKernel.columns, kKernel.aligned>>(
            site, dim3(static_cast<unsigned>(made.blocks)), kDepthwiseThreads,
            static_cast<size_t>(made.shared_bytes), made.params);
      }
    });
  });
  add_partial_sums(site, fit.splits, buffers);
}

}  // namespace convx
