#include "engines/cuda/lines/lines_launch.h"
#include "engines/cuda/cuda_engines.h"

namespace convx {

void launch_cuda_lines(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& lines = *static_cast<const LinesPlan*>(plan.shape.get());
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
