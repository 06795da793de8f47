#include "engines/cuda/input_grad/col2im_launch.cuh"

namespace convx {

void launch_col2im_float16(const LaunchSite& site, const Col2imParams& params) {
  launch_col2im<TensorMath::kFloat16>(site, params);
}

}  // namespace convx
