// Launches cuda_grouped: the FFMA kernels of NCHW and channels_last are compiled here.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/grouped_kernel.cuh"
#include "engines/cuda/grouped/grouped_pixel_kernel.cuh"

namespace convx {
namespace {

void launch_pixels(const LaunchSite& site, const GroupedPixelFit& fit, const Buffers& buffers) {
  const GroupedPixelParams params = make_grouped_pixel_params(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    launch_kernel<grouped_pixel_kernel<decltype(zero)>>(site, fit.blocks, kPixelThreads,
                                                        fit.shared_bytes, params);
  });
}

void launch_planes(const LaunchSite& site, const GroupedFit& fit, const Buffers& buffers) {
  const GroupedParams params = make_grouped_params(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    launch_listed<kGroupedKernels>(site, fit.kernel, [&]<GroupedKernel kKernel>() {
      launch_kernel<grouped_kernel<decltype(zero), kKernel.window, kKernel.filters>>(
          site, fit.blocks, fit.threads, fit.shared_bytes, params);
    });
  });
}

}  // namespace

void launch_cuda_grouped(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const GroupedFit& fit = geometry_of<GroupedFit>(plan);
  if (fit.pixels.blocks > 0) return launch_pixels(site, fit.pixels, buffers);
  if (fit.mma.blocks > 0) return launch_grouped_mma(site, fit.mma, buffers);
  launch_planes(site, fit, buffers);
}

}  // namespace convx
