// The time the CPU engines take, from counts of what their kernels do.
#pragma once

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// plan: of plan_gather() or plan_weight().
double predict_cpu_us(const ConvProblem& problem, const Plan& plan, const DeviceCaps& caps);

}  // namespace convx
