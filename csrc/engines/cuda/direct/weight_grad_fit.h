// A fitted weight gradient, ready to launch except for its buffers. Plain host code.
#pragma once

#include "core/problem.h"
#include "engines/cuda/direct/weight_grad_params.h"
#include "engines/cuda/direct/weight_grad_shape.h"

namespace convx {

// Stored in Plan::shape for the weight gradient.
struct WeightGradFit {
  WeightGradShape shape;
  WeightGradParams params;  // without buffers and without the slice of tiles
};

WeightGradFit make_weight_grad_fit(const ConvProblem& problem, const WeightGradShape& shape);

}  // namespace convx
