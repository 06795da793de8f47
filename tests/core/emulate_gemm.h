#pragma once

#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// Runs a plan of cuda_gemm on the host; the workspace is its own. Returns what went wrong, or null.
const char* emulate_gemm(const ConvProblem& problem, const Plan& plan, Buffers buffers);

}  // namespace convx
