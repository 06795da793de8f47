#include "engines/cuda_lines/cuda_lines_launch.h"

#include "engines/cuda_lines/lines_passes.h"

namespace convx {
namespace {

void launch(const LaunchSite& site, const WindowShape& shape, const WindowParams& params) {
  switch (shape.math) {
    case TensorMath::kTf32:
      return launch_lines_tf32(site, shape, params);
    case TensorMath::kIeee:
      return launch_lines_ieee(site, shape, params);
    case TensorMath::kBFloat16:
      return launch_lines_bfloat16(site, shape, params);
    case TensorMath::kFloat16:
      return launch_lines_float16(site, shape, params);
    case TensorMath::kHalfTf32:
      return launch_lines_half_tf32(site, shape, params);
    case TensorMath::kHalfIeee:
      return launch_lines_half_ieee(site, shape, params);
  }
}

}  // namespace

void launch_cuda_lines(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& lines = *static_cast<const LinesPlan*>(plan.shape.get());
  launch_phases(
      lines.phases, buffers,
      [&](const WindowFit& fit, int64_t before) {
        return make_window_params(lines.problem, fit, buffers, before);
      },
      [&](const WindowShape& shape, const WindowParams& params) { launch(site, shape, params); });
}

}  // namespace convx
