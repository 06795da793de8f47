#include "engines/cuda_pointwise/cuda_pointwise_plan.h"

#include "engines/cuda_limits.h"
#include "engines/cuda_pointwise/pointwise_fit.h"

namespace convx {
namespace {

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.taps() != 1) return "it computes 1x1 kernels only";
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.pass == Pass::kInputGrad && p.stride != Hw{1, 1}) {
    return "it computes the input gradient for stride 1 only";
  }
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  constexpr int64_t kLimit = int64_t{1} << 30;
  const int64_t plane = p.pass == Pass::kForward ? p.P * p.Q : p.H * p.W;
  if (p.N * plane >= kLimit) return "the target has 2^30 pixels or more";
  if (fit_pointwise_shape(p, caps, tensor_math(p)).filters == 0) {
    return "64 filters of so many channels do not fit in shared memory";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaPointwise;
  PointwiseShape exact = fit_pointwise_shape(problem, caps, tensor_math(problem));
  PointwiseShape half = fit_pointwise_halves(problem, caps);
  if (half.microseconds + kHalfMicroseconds >= exact.microseconds) half = {};
  const bool halved = half.filters > 0;
  const PointwiseShape& first = halved ? half : exact;
  plan.tile = {kPointwisePixels, first.filters, pointwise_chunk(first.math)};
  plan.predicted_us = first.microseconds + (halved ? kHalfMicroseconds : 0);
  plan.workspace_bytes = halved ? count_scale_bytes(problem) : 0;
  plan.shape = std::make_shared<const PointwisePlan>(
      make_pointwise_plan(problem, std::move(exact), std::move(half)));
  return plan;
}

}  // namespace

Engine cuda_pointwise_engine() {
  return {EngineId::kCudaPointwise, "cuda_pointwise", refuse, plan};
}

}  // namespace convx
