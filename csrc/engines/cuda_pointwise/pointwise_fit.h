// From a problem's shape to what its kernels are launched with.
#pragma once

#include "core/buffers.h"
#include "engines/cuda_pointwise/pointwise_params.h"

namespace convx {

// What a plan remembers: the shape, and all parameters that do not depend on the call.
struct PointwiseFit {
  PointwiseShape shape;
  PointwiseParams params;
};

PointwiseFit make_pointwise_fit(const ConvProblem& problem, PointwiseShape shape);

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers);

}  // namespace convx
