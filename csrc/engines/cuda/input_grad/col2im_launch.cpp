#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/col2im_fit.h"
#include "engines/cuda/input_grad/col2im_passes.h"

namespace convx {
namespace {

void launch(const LaunchSite& site, const Col2imShape& shape, const Col2imParams& params) {
  switch (shape.math) {
    case TensorMath::kTf32:  // fit_col2im makes kIeee of it
      break;
    case TensorMath::kIeee:
      return launch_col2im_ieee(site, params);
    case TensorMath::kBFloat16:
      return launch_col2im_bfloat16(site, params);
    case TensorMath::kFloat16:
      return launch_col2im_float16(site, params);
    case TensorMath::kHalfTf32:
      return launch_col2im_half_tf32(site, params);
    case TensorMath::kHalfIeee:
      return launch_col2im_half_ieee(site, params);
  }
}

}  // namespace

void launch_cuda_col2im(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& planned = *static_cast<const Col2imPlan*>(plan.shape.get());
  launch_halves(
      planned.fits, buffers,
      [&](const Col2imFit& fit) {
        return make_col2im_params(planned.problem, fit, buffers, planned.fits.scale_bytes);
      },
      [&](const Col2imShape& shape, const Col2imParams& params) { launch(site, shape, params); });
}

}  // namespace convx
