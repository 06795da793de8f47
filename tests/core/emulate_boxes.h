#pragma once

#include "core/plan.h"
#include "engines/cuda/boxes/boxes_params.h"

namespace convx {

// Runs a plan on the host. Returns what went wrong, or null. descending: the order in which threads
// run.
const char* emulate_boxes(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                          bool descending);

}  // namespace convx
