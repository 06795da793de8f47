#include "engines/cuda_lines/cuda_lines_plan.h"

#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_lines/window_fit.h"

namespace convx {
namespace {

WindowShape fit_shape(const ConvProblem& problem, const DeviceCaps& caps) {
  const GatherView view = make_gather_view(problem);
  return fit_window_shape(problem, caps, make_gather_axis(view.rows[0], false),
                          make_gather_axis(view.columns[0], false));
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (fit_shape(p, caps).columns == 0) return "no tile fits in shared memory, or no image's line";
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaLines;
  WindowShape shape = fit_shape(problem, caps);
  plan.tile = {int64_t{kWindowFilters} * shape.filter_groups, shape.columns * shape.windows(),
               shape.chunk_channels};
  plan.split = shape.splits;
  plan.workspace_bytes = shape.packed_bytes + shape.line_bytes + shape.partial_bytes;
  plan.predicted_us = shape.microseconds;
  plan.shape = std::make_shared<const WindowFit>(make_window_fit(problem, std::move(shape)));
  return plan;
}

}  // namespace

Engine cuda_lines_engine() { return {EngineId::kCudaLines, "cuda_lines", refuse, plan}; }

}  // namespace convx
