#pragma once

#include "core/plan.h"
#include "engines/cuda/grouped/grouped_geometry.h"

namespace convx {

// Runs a planned problem on the host; says what went wrong, if anything. The plan's shape is a
// GroupedFit.
const char* emulate_grouped(const ConvProblem& problem, const Plan& plan, const Buffers& buffers);

}  // namespace convx
