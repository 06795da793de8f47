#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/direct/direct_gather.h"
#include "engines/cuda/direct/direct_weight_grad.h"

namespace convx {

void launch_cuda_direct(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  const void* shape = plan.shape.get();
  if (problem.pass == Pass::kWeightGrad) {
    return launch_direct_weight_grad(site, *static_cast<const WeightGradFit*>(shape), buffers);
  }
  if (problem.N == 0) return;
  const GatherFit& fit = *static_cast<const GatherFit*>(shape);
  if (problem.dtype == DType::kFloat32) {
    launch_gather_float32(site, fit, buffers);
  } else {
    launch_gather_other(site, fit, buffers);
  }
}

}  // namespace convx
