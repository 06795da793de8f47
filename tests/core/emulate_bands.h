#pragma once

#include "core/plan.h"
#include "engines/cuda/depthwise/bands_geometry.h"

namespace convx {

// Runs a planned problem on the host; says what went wrong, if anything.
const char* emulate_bands(const ConvProblem& problem, const Plan& plan, const Buffers& buffers);

}  // namespace convx
