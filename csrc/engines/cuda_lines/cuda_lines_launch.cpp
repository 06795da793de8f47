#include "engines/cuda_lines/cuda_lines_launch.h"

#include "engines/cuda_lines/lines_passes.h"

namespace convx {
namespace {

void launch(const LaunchSite& site, const WindowFit& fit, const WindowParams& params) {
  switch (fit.shape.math) {
    case TensorMath::kTf32:
      return launch_lines_tf32(site, fit.shape, params);
    case TensorMath::kIeee:
      return launch_lines_ieee(site, fit.shape, params);
    case TensorMath::kBFloat16:
      return launch_lines_bfloat16(site, fit.shape, params);
    case TensorMath::kFloat16:
      return launch_lines_float16(site, fit.shape, params);
    case TensorMath::kHalfTf32:
      return launch_lines_half_tf32(site, fit.shape, params);
    case TensorMath::kHalfIeee:
      return launch_lines_half_ieee(site, fit.shape, params);
  }
}

}  // namespace

void launch_cuda_lines(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& lines = *static_cast<const LinesPlan*>(plan.shape.get());
  WindowParams exact = make_window_params(*site.problem, lines.exact, buffers, lines.scale_bytes);
  if (lines.half) {
    WindowParams half = make_window_params(*site.problem, *lines.half, buffers, lines.scale_bytes);
    half.scales = static_cast<HalfScales*>(buffers.workspace);
    half.gate = exact.gate = &half.scales->unfit;
    half.runs_at_zero = true;
    launch(site, *lines.half, half);
  }
  launch(site, lines.exact, exact);
}

}  // namespace convx
