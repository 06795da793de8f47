#include "engines/cuda/input_grad/col2im_launch.cuh"

namespace convx {

void launch_col2im_ieee(const LaunchSite& site, const Col2imParams& params) {
  launch_col2im<TensorMath::kIeee>(site, params);
}

}  // namespace convx
