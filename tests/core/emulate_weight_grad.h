#pragma once

#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// Runs a plan of cuda_weight_grad on the host. Nothing, or what a GPU would not have forgiven.
const char* emulate_cuda_weight_grad(const ConvProblem& problem, const Plan& plan,
                                     Buffers buffers);

}  // namespace convx
