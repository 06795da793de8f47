// Weight gradients of float32 as scaled fp16, in one and in two components, and as the sum of two
// and of three bfloat16.
#include "engines/cuda/weight_grad/wgrad_launch.cuh"

namespace convx {

template void run_wgrad<OperandForm::kScaledFp16>(const LaunchSite&, const WgradGeometry&,
                                                  WgradCall);
template void run_wgrad<OperandForm::kScaledFp16x2>(const LaunchSite&, const WgradGeometry&,
                                                    WgradCall);
template void run_wgrad<OperandForm::kBf16x2>(const LaunchSite&, const WgradGeometry&, WgradCall);
template void run_wgrad<OperandForm::kBf16x3>(const LaunchSite&, const WgradGeometry&, WgradCall);

}  // namespace convx
