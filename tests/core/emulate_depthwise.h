#pragma once

#include "core/plan.h"
#include "engines/cuda/depthwise/weight_grad_geometry.h"

namespace convx {

// Runs a planned problem on the host; says what went wrong, if anything. The plan's shape is what
// the problem's pass and stride need; buffers.workspace has room for partial sums.
const char* emulate_depthwise(const ConvProblem& problem, const Plan& plan, const Buffers& buffers);

}  // namespace convx
