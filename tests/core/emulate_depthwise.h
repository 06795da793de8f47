#pragma once

#include "engines/cuda/depthwise/depthwise_fit.h"
#include "engines/cuda/depthwise/depthwise_weight_grad_fit.h"

namespace convx {

// Runs a fitted problem on the host; false if a block wrote behind its shared memory.
bool emulate_depthwise(const ConvProblem& problem, const DepthwiseFit& fit, const Buffers& buffers);

// The same for a weight gradient; buffers.workspace has room for its partial sums.
bool emulate_weight_grad(const ConvProblem& problem, const DepthwiseWeightGradFit& fit,
                         const Buffers& buffers);

}  // namespace convx
