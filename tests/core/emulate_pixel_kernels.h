#pragma once

#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// Runs a plan of cuda_pixels for float32 on the host; the workspace is its own. descending: a
// block's last thread goes first. unfit: whether values were found not to be fit for halves.
// Returns what went wrong, or null.
const char* emulate_pixels(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                           bool descending, bool& unfit);

}  // namespace convx
