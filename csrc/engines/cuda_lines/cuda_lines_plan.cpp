#include "engines/cuda_lines/cuda_lines_plan.h"

#include <algorithm>

#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_lines/window_fit.h"

namespace convx {
namespace {

WindowShape fit_shape(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math) {
  const GatherView view = make_gather_view(problem);
  return fit_window_shape(problem, caps, math, make_gather_axis(view.rows[0], false),
                          make_gather_axis(view.columns[0], false));
}

int64_t count_bytes(const WindowShape& shape) {
  return shape.packed_bytes + shape.line_bytes + shape.partial_bytes;
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (fit_shape(p, caps, tensor_math(p)).columns == 0)
    return "no tile fits in shared memory, or no image's line";
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaLines;
  const TensorMath math = tensor_math(problem);
  const auto lines = std::make_shared<LinesPlan>();
  const auto take = [&](WindowShape shape, double more_microseconds) {
    plan.tile = {int64_t{kWindowFilters} * shape.filter_groups, shape.columns * shape.windows(),
                 shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes = std::max(plan.workspace_bytes, count_bytes(shape));
    plan.predicted_us = shape.microseconds + more_microseconds;
    return make_window_fit(problem, std::move(shape));
  };
  if (problem.dtype == DType::kFloat32) {
    DeviceCaps rest = caps;
    const int64_t scale_bytes = HalfScales::bytes(problem.K);
    rest.workspace_limit -= scale_bytes;
    WindowShape half = fit_shape(
        problem, rest, math == TensorMath::kTf32 ? TensorMath::kHalfTf32 : TensorMath::kHalfIeee);
    WindowShape exact = fit_shape(problem, rest, math);
    const int min_terms = math == TensorMath::kTf32 ? 0 : kMinHalfIeeeTerms;
    const int64_t terms = problem.C / problem.groups * problem.R * problem.S;
    if (terms >= 2 * min_terms && half.columns > 0 && exact.columns > 0 &&
        half.microseconds + kHalfMicroseconds < exact.microseconds) {
      lines->exact = take(std::move(exact), 0);
      lines->half = take(std::move(half), kHalfMicroseconds);
      lines->half->params.min_terms = min_terms;
      lines->scale_bytes = scale_bytes;
      plan.workspace_bytes += scale_bytes;
      plan.halves = true;
    }
  }
  if (!lines->half) lines->exact = take(fit_shape(problem, caps, math), 0);
  plan.shape = lines;
  return plan;
}

}  // namespace

Engine cuda_lines_engine() { return {EngineId::kCudaLines, "cuda_lines", refuse, plan}; }

}  // namespace convx
