#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/diagonal_kernel.cuh"

namespace convx {

void launch_cuda_diagonal(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const DiagonalFit& fit = geometry_of<DiagonalFit>(plan);
  const DiagonalParams params = make_diagonal_params(*site.problem, fit, buffers);
  visit_mma_type(site.problem->dtype, [&](auto element) {
    using T = decltype(element);
    launch_listed<kDiagonalKernels>(site, fit.kernel, [&]<DiagonalKernel kKernel>() {
      if constexpr (sizeof(T) == 4 || kKernel.pieces == 2) {
        launch_kernel<diagonal_kernel<T, kKernel.pieces, kKernel.warp_pixels>>(
            site, dim3(static_cast<unsigned>(fit.blocks)), kDiagonalThreads,
            static_cast<size_t>(fit.shared_bytes), params);
      }
    });
  });
}

}  // namespace convx
