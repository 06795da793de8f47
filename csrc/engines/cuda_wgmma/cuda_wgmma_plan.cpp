#include "engines/cuda_wgmma/cuda_wgmma_plan.h"

#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_window/window_fit.h"

namespace convx {
namespace {

WindowShape fit_shape(const ConvProblem& problem, const DeviceCaps& caps) {
  const GatherView view = make_gather_view(problem);
  return fit_window_shape(problem, caps, make_gather_axis(view.rows[0], false),
                          make_gather_axis(view.columns[0], false));
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma(p, caps); !refusal.empty()) return refusal;
  if (p.x_strides.c == 1 && p.C > 1) return "it reads channels_last inputs too slowly yet";
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  constexpr int64_t kLimit = int64_t{1} << 30;
  for (const int64_t stride : {p.x_strides.n, p.x_strides.c}) {
    if (stride >= kLimit) return "an image has 2^30 elements or more";
  }
  if (p.H * p.x_strides.h >= kLimit || p.W * p.x_strides.w >= kLimit) {
    return "a plane spans 2^30 elements or more";
  }
  if (fit_shape(p, caps).columns == 0) return "no tile fits in shared memory";
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaWgmma;
  WindowShape shape = fit_shape(problem, caps);
  plan.tile = {int64_t{kWindowFilters} * shape.filter_groups, shape.columns * shape.windows(),
               shape.chunk_channels};
  plan.split = shape.splits;
  plan.workspace_bytes = shape.packed_bytes + shape.partial_bytes;
  plan.predicted_us = shape.microseconds;
  plan.shape = std::make_shared<const WindowFit>(make_window_fit(problem, std::move(shape)));
  return plan;
}

}  // namespace

Engine cuda_wgmma_engine() { return {EngineId::kCudaWgmma, "cuda_wgmma", refuse, plan}; }

}  // namespace convx
