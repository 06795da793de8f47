#include "cuda/launch.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/diagonal_fit.h"
#include "engines/cuda/grouped/diagonal_kernel.cuh"

namespace convx {
namespace {

template <typename T, int kPieces>
void launch(const LaunchSite& site, const DiagonalFit& fit, const DiagonalParams& params) {
  const dim3 grid(static_cast<unsigned>(fit.blocks));
  const auto shared_bytes = static_cast<size_t>(fit.shared_bytes);
  if (fit.warp_pixels == kDiagonalFewPixels) {
    launch_kernel<diagonal_kernel<T, kPieces, kDiagonalFewPixels>>(site, grid, kDiagonalThreads,
                                                                   shared_bytes, params);
  } else {
    launch_kernel<diagonal_kernel<T, kPieces, kDiagonalManyPixels>>(site, grid, kDiagonalThreads,
                                                                    shared_bytes, params);
  }
}

}  // namespace

void launch_cuda_diagonal(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const DiagonalFit& fit = *static_cast<const DiagonalFit*>(plan.shape.get());
  const DiagonalParams params = make_diagonal_params(*site.problem, fit, buffers);
  visit_mma_type(site.problem->dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (sizeof(T) == 4) {
      if (fit.pieces == 1) return launch<T, 1>(site, fit, params);
    }
    launch<T, 2>(site, fit, params);
  });
}

}  // namespace convx
