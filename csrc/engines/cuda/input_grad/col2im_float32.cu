#include "engines/cuda/input_grad/col2im_kernel.cuh"

namespace convx {

template void launch_col2im<TensorMath::kHalfTf32>(const LaunchSite&, const Col2imParams&);
template void launch_col2im<TensorMath::kHalfIeee>(const LaunchSite&, const Col2imParams&);
template void launch_col2im<TensorMath::kIeee>(const LaunchSite&, const Col2imParams&);

}  // namespace convx
