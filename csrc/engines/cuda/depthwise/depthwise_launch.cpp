#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/cuda_engines.h"

namespace convx {

void launch_cuda_depthwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  if (site.problem->pass == Pass::kWeightGrad) {
    const auto launch = [&](const auto& fit) {
      const int64_t parts = launch_weight_grad_parts(site, fit, buffers);
      if (parts == 0) return;
      launch_weight_grad_sums(site, make_weight_grad_sums(*site.problem, parts, buffers));
    };
    return std::visit(launch, *static_cast<const DepthwiseWeightGradFit*>(plan.shape.get()));
  }
  if (is_strided_input_grad(*site.problem)) {
    const auto& strips = *static_cast<const PhaseStripFit*>(plan.shape.get());
    return launch_depthwise_phase_strips(site, strips, buffers);
  }
  const DepthwiseFit& fit = *static_cast<const DepthwiseFit*>(plan.shape.get());
  if (fit.strip.shape >= 0) {
    launch_depthwise_strips(site, fit, buffers);
  } else if (fit.layout == DepthwiseLayout::kPlanes) {
    launch_depthwise_planes(site, fit, buffers);
  } else if (const auto strips = make_pixel_strip_params(*site.problem, fit, buffers)) {
    launch_depthwise_pixel_strips(site, fit, *strips);
  } else {
    launch_depthwise_channels_last(site, fit, buffers);
  }
}

}  // namespace convx
