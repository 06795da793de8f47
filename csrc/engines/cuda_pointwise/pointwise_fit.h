// From a problem's shape to what its kernels are launched with.
#pragma once

#include <optional>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "engines/cuda_pointwise/pointwise_params.h"

namespace convx {

// A shape, and all parameters that do not depend on the call.
struct PointwiseFit {
  PointwiseShape shape;
  PointwiseParams params;
};

// What a plan remembers.
struct PointwisePlan {
  PointwiseFit exact;
  // Values are first multiplied as halves. Where that turns out not to do, exact takes over; else
  // it has nothing to do.
  std::optional<PointwiseFit> half;
};

// half: there is no such part where it has no filters.
PointwisePlan make_pointwise_plan(const ConvProblem& problem, PointwiseShape exact,
                                  PointwiseShape half);

// The shape of the same problem with its values multiplied as halves; without filters where that
// must not be.
PointwiseShape fit_pointwise_halves(const ConvProblem& problem, const DeviceCaps& caps);

// Of the workspace: the scales of halves.
int64_t count_scale_bytes(const ConvProblem& problem);

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers);

}  // namespace convx
