#pragma once

#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// Null, or what went wrong.
const char* emulate_phases(const ConvProblem& problem, const Plan& plan, Buffers buffers);

}  // namespace convx
