// Weight gradients whose operands reach the tensor cores as they are stored, or rounded by TMA.
#include "engines/cuda/weight_grad/wgrad_launch.cuh"

namespace convx {

template void run_wgrad<OperandForm::kBFloat16>(const LaunchSite&, const WgradGeometry&, WgradCall);
template void run_wgrad<OperandForm::kFloat16>(const LaunchSite&, const WgradGeometry&, WgradCall);
template void run_wgrad<OperandForm::kTf32>(const LaunchSite&, const WgradGeometry&, WgradCall);

}  // namespace convx
