#include "engines/cuda_weight_grad/wgrad_launch.cuh"

namespace convx {

void run_wgrad_bfloat16(const LaunchSite& site, const WgradGeometry& geometry,
                        const WgradCall& call) {
  run_wgrad<__nv_bfloat16, OperandForm::kBFloat16>(site, geometry, call);
}

}  // namespace convx
