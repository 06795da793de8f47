#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "planning/tensor_math.h"

namespace convx {

// Runs a plan of cuda_lines on the host; the workspace is its own. descending:
// a block's last thread goes first. found: what was measured, where values may
// be halves. Returns what went wrong, or null.
const char *emulate_lines(const ConvProblem &problem, const Plan &plan,
                          Buffers buffers, bool descending, HalfScales &found);

} // namespace convx
