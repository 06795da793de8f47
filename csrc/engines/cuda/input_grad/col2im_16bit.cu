// The kernels of cuda_col2im for 16-bit tensors.
#include "engines/cuda/input_grad/col2im_kernel.cuh"

namespace convx {

template void launch_col2im<TensorMath::kBFloat16>(const LaunchSite&, const Col2imParams&);
template void launch_col2im<TensorMath::kFloat16>(const LaunchSite&, const Col2imParams&);

}  // namespace convx
