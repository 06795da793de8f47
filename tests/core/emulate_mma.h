#pragma once

#include "core/plan.h"
#include "engines/cuda/pixels/pixel_fit.h"

namespace convx {

// Runs the phases of a plan on the host; the workspace is its own. Returns what went wrong, or
// null.
const char* emulate_mma(const ConvProblem& problem, const MmaPlan& fit, Buffers buffers,
                        int64_t workspace_bytes);

}  // namespace convx
