#include "engines/cuda/input_grad/col2im_launch.cuh"

namespace convx {

void launch_col2im_half_tf32(const LaunchSite& site, const Col2imParams& params) {
  launch_col2im<TensorMath::kHalfTf32>(site, params);
}

}  // namespace convx
