#include "engines/cuda/weight_grad/wgrad_launch.cuh"

namespace convx {

void run_wgrad_bfloat16(const LaunchSite& site, const WgradGeometry& geometry,
                        const WgradCall& call) {
  run_wgrad<OperandForm::kBFloat16>(site, geometry, call);
}

}  // namespace convx
