#pragma once

#include "engines/cuda_pointwise/pointwise_fit.h"

namespace convx {

// Runs a fitted problem on the host. Returns what went wrong, or null.
const char* emulate_pointwise(const ConvProblem& problem, const PointwiseFit& fit,
                              const Buffers& buffers);

}  // namespace convx
