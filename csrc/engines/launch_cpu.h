// The launch side of the CPU engines.
#pragma once

#include "core/plan.h"
#include "core/problem.h"
#include "core/task_runner.h"

namespace convx {

// Runs a planned problem. plan.workspace_bytes was made for runner.slots slots.
void launch_cpu(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                const TaskRunner& runner);

// grad_bias[k] = sum over n, p, q of y[n][k][p][q], in an order that depends on the extents only.
void cpu_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias,
                   const TaskRunner& runner);

// Width in bytes of the vector registers the CPU engines use on this machine.
int cpu_simd_bytes();

}  // namespace convx
