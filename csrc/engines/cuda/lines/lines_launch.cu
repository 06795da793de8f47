// Launches cuda_lines. The kernels of float32 as three bfloat16 components, and as scaled fp16 of
// two, are compiled here, the others in lines_16bit.cu and lines_tf32.cu.
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/lines/lines_kernel.cuh"
#include "engines/cuda/lines/window_fit.h"

namespace convx {

extern template void launch_lines<TensorMath::kTf32>(const LaunchSite&, const WindowShape&,
                                                     const WindowParams&);
extern template void launch_lines<TensorMath::kBFloat16>(const LaunchSite&, const WindowShape&,
                                                         const WindowParams&);
extern template void launch_lines<TensorMath::kFloat16>(const LaunchSite&, const WindowShape&,
                                                        const WindowParams&);
extern template void launch_lines<TensorMath::kHalfTf32>(const LaunchSite&, const WindowShape&,
                                                         const WindowParams&);

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
