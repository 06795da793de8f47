// Launches cuda_direct. The gather kernels are compiled here.
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/direct/gather_launch.cuh"
#include "engines/cuda/direct/weight_grad_geometry.h"

namespace convx {

void launch_cuda_direct(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  const auto& planned = geometry_of<DirectPlan>(plan).pass;
  if (const auto* fit = std::get_if<WeightGradFit>(&planned)) {
    const bool by_pixels =
        kWeightGradConfigs[fit->shape.config].kernel == WeightGradKernel::kPixels;
    return by_pixels ? launch_weight_grad_pixels(site, *fit, buffers)
                     : launch_weight_grad_tiles(site, *fit, buffers);
  }
  if (problem.N == 0) return;
  const auto& gather = std::get<GatherShape>(planned);
  visit_device_type(problem.dtype, [&]<typename T>(T) { launch_gather<T>(site, gather, buffers); });
}

}  // namespace convx
