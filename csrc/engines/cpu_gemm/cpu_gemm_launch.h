#pragma once

#include "core/buffers.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/task_runner.h"

namespace convx {

void launch_cpu_gemm(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                     const TaskRunner& runner);

}  // namespace convx
