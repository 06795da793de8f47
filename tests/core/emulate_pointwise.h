#pragma once

#include "engines/cuda_pointwise/pointwise_fit.h"

namespace convx {

// Runs a fitted problem on the host; false if a block wrote behind its shared memory.
bool emulate_pointwise(const ConvProblem& problem, const PointwiseFit& fit, const Buffers& buffers);

}  // namespace convx
