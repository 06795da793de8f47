// Predicts the time of the CPU engines from operation counts of their kernels.
#pragma once

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

// `plan` comes from plan_gather() or plan_weight().
double predict_cpu_us(const ConvProblem& problem, const Plan& plan, const DeviceCaps& caps);

}  // namespace convx
