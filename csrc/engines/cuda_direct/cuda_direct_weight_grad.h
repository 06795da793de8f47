#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda_direct/weight_grad_shape.h"

namespace convx {

// buffers.workspace holds shape.workspace_bytes.
void launch_direct_weight_grad(const LaunchSite& site, const WeightGradShape& shape,
                               const Buffers& buffers);

}  // namespace convx
