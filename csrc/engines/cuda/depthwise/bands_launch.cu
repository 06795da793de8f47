#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/bands_kernel.cuh"

namespace convx {

void launch_cuda_bands(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const BandsFit& fit = geometry_of<BandsFit>(plan);
  const BandsParams params = make_bands_params(*site.problem, fit, buffers);
  visit_mma_type(site.problem->dtype, [&](auto element) {
    using T = decltype(element);
    launch_listed<kBandsKernels>(site, fit.kernel(), [&]<BandsKernel kKernel>() {
      constexpr int kTiles = kKernel.columns / count_band_depth(sizeof(T));
      launch_kernel<bands_kernel<T, kKernel.steps, kTiles>>(
          site, dim3(static_cast<unsigned>(fit.blocks)), 32 * params.warps,
          static_cast<size_t>(fit.shared_bytes), params);
    });
  });
}

}  // namespace convx
