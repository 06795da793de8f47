// From a problem's shape to what its kernels are launched with.
#pragma once

#include "core/buffers.h"
#include "engines/cuda_pointwise/few_filters.h"
#include "engines/cuda_pointwise/pointwise_params.h"
#include "engines/half_plan.h"

namespace convx {

// A shape, and all parameters that do not depend on the call.
struct PointwiseFit {
  PointwiseShape shape;
  PointwiseParams params;
};

struct PointwisePlan {
  HalvedPlan<PointwiseFit> products;
  std::optional<FewFiltersFit> few;  // takes over where it can be launched
};

PointwiseFit make_pointwise_fit(const ConvProblem& problem, PointwiseShape shape);

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers);

}  // namespace convx
