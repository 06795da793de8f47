#pragma once

#include "cuda/launch.h"
#include "engines/cuda/pointwise/pointwise_kernel.cuh"
#include "engines/cuda/pointwise/pointwise_passes.h"

namespace convx {

template <TensorMath kMath>
void launch_pointwise(const LaunchSite& site, const PointwiseShape& shape,
                      const PointwiseParams& params) {
  launch_early<pointwise_kernel<kMath>>(site, dim3(static_cast<unsigned>(shape.grid)),
                                        kPointwiseThreads, shape.shared_bytes, params);
}

}  // namespace convx
