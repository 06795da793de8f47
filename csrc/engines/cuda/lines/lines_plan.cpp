#include <algorithm>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/lines/window_fit.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::optional<WindowShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                     TensorMath math, const GatherPhase& phase) {
  WindowShape shape = fit_window_shape(problem, caps, math, phase.rows, phase.columns);
  if (shape.columns == 0) return {};
  return shape;
}

constexpr int64_t kMaxBands = 16;

// The phases of the problem, each cut into as few bands of rows as its lines need to fit in the
// workspace. Empty if more than kMaxBands would be needed.
std::vector<GatherPhase> find_phases(const ConvProblem& problem, const DeviceCaps& caps) {
  const TensorMath math = tensor_math(problem);
  std::vector<GatherPhase> phases;
  for (const GatherPhase& phase : make_gather_phases(problem)) {
    // The lines of scaled fp16 are smaller, but the scales are in front of all lines.
    DeviceCaps rest = caps;
    if (const auto halves = find_halves(problem, phase.taps())) {
      rest.workspace_limit -= halves->scale_bytes;
    }
    const auto fits = [&](const GatherPhase& band) {
      return fit_shape(problem, rest, math, band).has_value();
    };
    std::vector<GatherPhase> bands = {phase};
    for (int64_t most = 2; !std::all_of(bands.begin(), bands.end(), fits); most *= 2) {
      if (most > kMaxBands) return {};
      bands = cut_bands(phase, most);
    }
    phases.insert(phases.end(), bands.begin(), bands.end());
  }
  return phases;
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma_gather(p, caps); !refusal.empty()) return refusal;
  if (std::string unreached = refuse_unreached_pixels(p); !unreached.empty()) return unreached;
  if (find_phases(p, caps).empty()) {
    return "no tile fits in shared memory, or no line in the workspace";
  }
  return "";
}

Plan plan_given_phases(const ConvProblem& problem, const DeviceCaps& caps,
                       const std::vector<GatherPhase>& phases) {
  Plan plan;
  plan.engine = EngineId::kCudaLines;
  const auto take = [&](WindowShape shape, int64_t before) {
    plan.tile = {int64_t{kWindowFilters} * shape.filter_groups, shape.columns * shape.windows(),
                 shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes = std::max(
        plan.workspace_bytes, before + shape.packed_bytes + shape.line_bytes + shape.partial_bytes);
    return make_window_fit(problem, std::move(shape));
  };
  LinesPlan lines{problem, plan_phases<WindowFit>(plan, problem, caps, phases, fit_shape, take)};
  plan.shape = std::make_shared<LinesPlan>(std::move(lines));
  return plan;
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan = plan_given_phases(problem, caps, find_phases(problem, caps));
  const ConvProblem flat = flatten_pixels(problem, 2);
  if (flat.N == problem.N) return plan;
  const std::vector<GatherPhase> rows = find_phases(flat, caps);
  if (rows.empty()) return plan;
  Plan other = plan_given_phases(flat, caps, rows);
  return other.predicted_us < plan.predicted_us ? other : plan;
}

}  // namespace

Engine cuda_lines_engine() { return {EngineId::kCudaLines, "cuda_lines", refuse, plan}; }

}  // namespace convx
