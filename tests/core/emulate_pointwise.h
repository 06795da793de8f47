#pragma once

#include "core/plan.h"
#include "engines/cuda/pointwise/pointwise_fit.h"

namespace convx {

// Runs a plan on the host. Returns what went wrong, or null. unfit: values did not do as halves.
const char* emulate_pointwise(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                              bool& unfit);

}  // namespace convx
