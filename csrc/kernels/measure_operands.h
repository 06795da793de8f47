// Finds the scales of scaled fp16 (half_scales.cuh).
#pragma once

#include "planning/tensor_params.h"

namespace convx {

struct LaunchSite;

// Launches the kernel that writes params.scales.
void measure(const LaunchSite& site, const TensorParams& params);

}  // namespace convx
