#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "engines/cuda/direct/weight_grad_geometry.h"

namespace convx {

// Runs a weight gradient whose kernel is WeightGradKernel::kPixels on the host. Returns what went
// wrong, or null.
const char* emulate_direct_pixels(const ConvProblem& problem, const WeightGradShape& shape,
                                  Buffers buffers);

}  // namespace convx
