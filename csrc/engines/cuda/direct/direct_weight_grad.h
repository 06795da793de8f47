#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda/direct/weight_grad_fit.h"

namespace convx {

// buffers.workspace must have fit.shape.workspace_bytes.
void launch_direct_weight_grad(const LaunchSite& site, const WeightGradFit& fit,
                               const Buffers& buffers);

// The same for configurations of WeightGradKernel::kPixels only.
void launch_pixel_weight_grad(const LaunchSite& site, const WeightGradFit& fit,
                              const Buffers& buffers);

}  // namespace convx
