#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "planning/tensor_math.h"

namespace convx {

// Returns a fault, or null. found: the scales of scaled fp16, if the plan has
// it.
const char* emulate_col2im(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                           HalfScales& found);

}  // namespace convx
