// Turns a shape into kernel parameters.
#pragma once

#include "core/buffers.h"
#include "engines/cuda/pointwise/few_filters.h"
#include "engines/cuda/pointwise/pointwise_params.h"
#include "planning/half_plan.h"

namespace convx {

// A shape, and the parameters that do not depend on the call's buffers.
struct PointwiseFit {
  PointwiseShape shape;
  PointwiseParams params;
};

struct PointwisePlan {
  HalvedPlan<PointwiseFit> products;
  std::optional<FewFiltersFit> few;  // used instead of `products` where the tensors are aligned
};

PointwiseFit make_pointwise_fit(const ConvProblem& problem, PointwiseShape shape);

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers);

}  // namespace convx
