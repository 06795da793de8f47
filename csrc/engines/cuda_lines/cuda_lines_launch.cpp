#include "engines/cuda_lines/cuda_lines_launch.h"

#include "engines/cuda_lines/lines_passes.h"

namespace convx {

void launch_cuda_lines(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  const WindowFit& fit = *static_cast<const WindowFit*>(plan.shape.get());
  const WindowParams params = make_window_params(problem, fit, buffers);
  switch (fit.shape.math) {
    case TensorMath::kTf32:
      return launch_lines_tf32(site, fit.shape, params);
    case TensorMath::kIeee:
      return launch_lines_ieee(site, fit.shape, params);
    case TensorMath::kBFloat16:
      return launch_lines_bfloat16(site, fit.shape, params);
    case TensorMath::kFloat16:
      return launch_lines_float16(site, fit.shape, params);
  }
}

}  // namespace convx
