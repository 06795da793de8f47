#pragma once

#include "core/buffers.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/half_scales.h"

namespace convx {

// Returns a fault, or null. found: the scales of scaled fp16, if the plan has
// it.
const char* emulate_col2im(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                           HalfScales& found);

}  // namespace convx
