// Launches cuda_col2im, whose kernels are compiled here.
#include "cuda/launch_listed.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/col2im_geometry.h"
#include "engines/cuda/input_grad/col2im_kernel.cuh"

namespace convx {

void launch_cuda_col2im(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& planned = geometry_of<Col2imPlan>(plan);
  launch_halves(
      planned.fits, buffers,
      [&](const Col2imFit& fit) {
        return make_col2im_params(planned.problem, fit, buffers, planned.fits.scale_bytes);
      },
      [&](const Col2imShape& shape, const Col2imParams& params) {
        launch_listed<kCol2imMaths>(
            site, shape.math, [&]<TensorMath kMath>() { launch_col2im<kMath>(site, params); });
      });
}

}  // namespace convx
