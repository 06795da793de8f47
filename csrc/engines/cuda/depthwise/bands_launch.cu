#include "cuda/launch.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/bands_fit.h"
#include "engines/cuda/depthwise/bands_kernel.cuh"

namespace convx {
namespace {

template <typename T, int kSteps>
void launch_steps(const LaunchSite& site, const BandsFit& fit, const BandsParams& params) {
  const dim3 grid(static_cast<unsigned>(fit.blocks));
  const int threads = 32 * params.warps;
  const auto bytes = static_cast<size_t>(fit.shared_bytes);
  constexpr int kDepth = count_band_depth(sizeof(T));
  if (fit.columns() == 16) {
    launch_kernel<bands_kernel<T, kSteps, 16 / kDepth>>(site, grid, threads, bytes, params);
  } else if (fit.columns() == 32) {
    launch_kernel<bands_kernel<T, kSteps, 32 / kDepth>>(site, grid, threads, bytes, params);
  } else {
    launch_kernel<bands_kernel<T, kSteps, 64 / kDepth>>(site, grid, threads, bytes, params);
  }
}

template <typename T>
void launch(const LaunchSite& site, const BandsFit& fit, const BandsParams& params) {
  if (fit.steps == 2) {
    launch_steps<T, 2>(site, fit, params);
  } else {
    launch_steps<T, 3>(site, fit, params);
  }
}

}  // namespace

void launch_cuda_bands(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const BandsFit& fit = *static_cast<const BandsFit*>(plan.shape.get());
  const BandsParams params = make_bands_params(*site.problem, fit, buffers);
  visit_mma_type(site.problem->dtype,
                 [&](auto element) { launch<decltype(element)>(site, fit, params); });
}

}  // namespace convx
