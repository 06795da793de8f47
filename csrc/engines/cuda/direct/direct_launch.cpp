#include "cuda/check.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/direct/gather_geometry.h"
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
  problem.dtype == DType::kFloat32 ? launch_gather_float32(site, gather, buffers)
                                   : launch_gather_other(site, gather, buffers);
}

}  // namespace convx
