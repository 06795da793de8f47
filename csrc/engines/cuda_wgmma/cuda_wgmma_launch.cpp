#include "engines/cuda_wgmma/cuda_wgmma_launch.h"

#include "engines/cuda_wgmma/wgmma_passes.h"

namespace convx {

void launch_cuda_wgmma(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  const WindowFit& fit = *static_cast<const WindowFit*>(plan.shape.get());
  const WindowParams params = make_window_params(problem, fit, buffers);
  switch (fit.shape.math) {
    case TensorMath::kTf32:
      return launch_wgmma_tf32(site, fit.shape, params);
    case TensorMath::kIeee:
      return launch_wgmma_ieee(site, fit.shape, params);
    case TensorMath::kBFloat16:
      return launch_wgmma_bfloat16(site, fit.shape, params);
    case TensorMath::kFloat16:
      return launch_wgmma_float16(site, fit.shape, params);
  }
}

}  // namespace convx
