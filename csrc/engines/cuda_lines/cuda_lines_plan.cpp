#include "engines/cuda_lines/cuda_lines_plan.h"

#include <algorithm>

#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_lines/window_fit.h"

namespace convx {
namespace {

std::optional<WindowShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                     TensorMath math) {
  const GatherView view = make_gather_view(problem);
  WindowShape shape = fit_window_shape(problem, caps, math, make_gather_axis(view.rows[0], false),
                                       make_gather_axis(view.columns[0], false));
  if (shape.columns == 0) return {};
  return shape;
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (!fit_shape(p, caps, tensor_math(p)))
    return "no tile fits in shared memory, or no image's line";
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaLines;
  plan_halves<WindowFit>(
      plan, problem, caps,
      [&](const DeviceCaps& some, TensorMath math) { return fit_shape(problem, some, math); },
      [&](WindowShape shape) {
        plan.tile = {int64_t{kWindowFilters} * shape.filter_groups, shape.columns * shape.windows(),
                     shape.chunk_channels};
        plan.split = shape.splits;
        plan.workspace_bytes = std::max(
            plan.workspace_bytes, shape.packed_bytes + shape.line_bytes + shape.partial_bytes);
        return make_window_fit(problem, std::move(shape));
      });
  return plan;
}

}  // namespace

Engine cuda_lines_engine() { return {EngineId::kCudaLines, "cuda_lines", refuse, plan}; }

}  // namespace convx
