#include "engines/cuda/input_grad/col2im_launch.cuh"

namespace convx {

void launch_col2im_bfloat16(const LaunchSite& site, const Col2imParams& params) {
  launch_col2im<TensorMath::kBFloat16>(site, params);
}

}  // namespace convx
