#pragma once

#include "engines/cuda_depthwise/depthwise_fit.h"

namespace convx {

// Runs a fitted problem on the host; false if a block wrote behind its shared memory.
bool emulate_depthwise(const ConvProblem& problem, const DepthwiseFit& fit, const Buffers& buffers);

}  // namespace convx
