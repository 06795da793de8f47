// Launches cuda_grouped's tensor-core kernels.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/grouped/grouped_mma_kernel.cuh"

namespace convx {

void launch_grouped_mma(const LaunchSite& site, const GroupedMmaFit& fit, const Buffers& buffers) {
  const GroupedMmaParams params = make_grouped_mma_params(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      launch_listed<kGroupedMmaKernels>(site, fit.kernel, [&]<GroupedMmaKernel kKernel>() {
        launch_kernel<grouped_mma_kernel<T, kKernel.filters, kKernel.cells>>(
            site, dim3(static_cast<unsigned>(fit.blocks)), kGroupedMmaThreads,
            static_cast<size_t>(fit.shared_bytes), params);
      });
    }
  });
}

}  // namespace convx
