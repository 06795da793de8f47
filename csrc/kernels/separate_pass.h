// Adds a residual and applies an activation behind an engine whose kernels do neither.
#pragma once

#include "core/plan.h"
#include "cuda/check.h"

namespace convx {

// y = activation(y + residual), by the epilogue of the problem; both are dense. A 16-bit y has been
// rounded once before.
void apply_epilogue(const LaunchSite& site, const Buffers& buffers);

}  // namespace convx
