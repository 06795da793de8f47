#include "engines/cuda/weight_grad/wgrad_launch.cuh"

namespace convx {

void run_wgrad_bf16x2(const LaunchSite& site, const WgradGeometry& geometry,
                      const WgradCall& call) {
  run_wgrad<OperandForm::kBf16x2>(site, geometry, call);
}

}  // namespace convx
