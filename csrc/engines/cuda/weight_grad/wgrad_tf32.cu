#include "engines/cuda/weight_grad/row_boxes_launch.cuh"

namespace convx {

void run_wgrad_tf32(const LaunchSite& site, const WgradGeometry& geometry, const WgradCall& call) {
  run_row_boxes<OperandForm::kTf32>(site, geometry, call);
}

}  // namespace convx
