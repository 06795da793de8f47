// Launches cuda_depthwise. The tile kernels are compiled here, the others in files of their own.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/channels_last_kernel.cuh"
#include "engines/cuda/depthwise/plane_kernel.cuh"
#include "engines/cuda/depthwise/weight_grad_geometry.h"

namespace convx {
namespace {

void launch_planes(const LaunchSite& site, const DepthwiseFit& fit, const Buffers& buffers) {
  const PlaneParams params = make_plane_params(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_listed<kPlaneTaps>(site, fit.plane_taps, [&]<int kTaps>() {
      if constexpr (has_plane_kernel(sizeof(T), kTaps)) {
        launch_kernel<plane_kernel<T, kTaps>>(site, fit.blocks, kDepthwiseThreads, fit.shared_bytes,
                                              params);
      }
    });
  });
}

void launch_channels_last(const LaunchSite& site, const DepthwiseFit& fit, const Buffers& buffers) {
  const ChannelsLastParams params = make_channels_last_params(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    launch_kernel<channels_last_kernel<decltype(zero)>>(site, fit.blocks, kDepthwiseThreads,
                                                        fit.shared_bytes, params);
  });
}

}  // namespace

void launch_cuda_depthwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& planned = geometry_of<DepthwisePlan>(plan).pass;
  if (const auto* grad = std::get_if<DepthwiseWeightGradFit>(&planned)) {
    const auto launch = [&](const auto& fit) { launch_weight_grad(site, fit, buffers); };
    return std::visit(launch, *grad);
  }
  if (const auto* strips = std::get_if<PhaseStripFit>(&planned)) {
    return launch_strips(site, make_phase_strips(*site.problem, *strips, buffers));
  }
  const DepthwiseFit& fit = std::get<DepthwiseFit>(planned);
  if (fit.strip.shape >= 0) {
    launch_strips(site, make_strip_launch(*site.problem, fit, buffers));
  } else if (fit.layout == DepthwiseLayout::kPlanes) {
    launch_planes(site, fit, buffers);
  } else if (const auto strips = make_pixel_strip_params(*site.problem, fit, buffers)) {
    launch_strips(site, {fit.pixel_strip.shape, *strips, fit.pixel_strip.blocks});
  } else {
    launch_channels_last(site, fit, buffers);
  }
}

}  // namespace convx
