#pragma once

#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// Returns what went wrong, or null.
const char* emulate_separate_pass(const ConvProblem& problem, const Buffers& buffers);

}  // namespace convx
