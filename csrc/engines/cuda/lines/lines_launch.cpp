#include "cuda/check.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/lines/window_fit.h"

namespace convx {

// Launches the kernels of a phase (lines_kernel.cuh); one .cu file per width of the operands.
template <TensorMath kMath>
void launch_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& params);

void launch_cuda_lines(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& lines = geometry_of<LinesPlan>(plan);
  launch_phases(
      lines.phases, buffers,
      [&](const WindowFit& fit, int64_t before) {
        return make_window_params(lines.problem, fit, buffers, before);
      },
      [&](const WindowShape& shape, const WindowParams& params) {
        visit_math(shape.math,
                   [&]<TensorMath kMath>() { launch_lines<kMath>(site, shape, params); });
      });
}

}  // namespace convx
