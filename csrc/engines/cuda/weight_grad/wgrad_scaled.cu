#include "engines/cuda/weight_grad/wgrad_launch.cuh"

namespace convx {

void run_wgrad_scaled(const LaunchSite& site, const WgradGeometry& geometry,
                      const WgradCall& call) {
  run_wgrad<OperandForm::kScaledFp16>(site, geometry, call);
}

}  // namespace convx
