// The kernels by what they multiply, compiled in files of their own.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_pointwise/pointwise_fit.h"

namespace convx {

void launch_pointwise_float32(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);
void launch_pointwise_half(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);

}  // namespace convx
