#include <algorithm>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/lines/window_fit.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::optional<WindowShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                     TensorMath math, const GatherPhase& phase, double give_up_us) {
  WindowShape shape = fit_window_shape(problem, caps, math, phase.rows, phase.columns, give_up_us);
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
    const auto check = [&](const GatherPhase& band) {
      return check_window_shape(problem, rest, math, band.rows, band.columns);
    };
    const auto fits = [&](const GatherPhase& band) { return check(band) == WindowFitness::kFits; };
    const WindowFitness whole = check(phase);
    if (whole == WindowFitness::kNeverFits) return {};
    if (whole == WindowFitness::kFits) {
      phases.push_back(phase);
      continue;
    }
    std::vector<GatherPhase> bands = cut_bands(phase, 2);
    for (int64_t most = 4; !std::all_of(bands.begin(), bands.end(), fits); most *= 2) {
      if (most > kMaxBands) return {};
      bands = cut_bands(phase, most);
    }
    phases.insert(phases.end(), bands.begin(), bands.end());
  }
  return phases;
}

std::optional<Plan> plan_phases_of(const ConvProblem& problem, const DeviceCaps& caps,
                                   const std::vector<GatherPhase>& phases, double give_up_us) {
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
  // The least that the phases after each one take.
  std::vector<double> rest_us(phases.size());
  for (size_t i = phases.size(); i-- > 1;) {
    rest_us[i - 1] = rest_us[i] + bound_phase_us(problem, caps, phases[i]);
  }
  const auto fit = [&](const ConvProblem& p, const DeviceCaps& some, TensorMath math,
                       const GatherPhase& phase, double most_us) {
    return fit_shape(p, some, math, phase, most_us - rest_us[&phase - phases.data()]);
  };
  std::optional<PhasedPlan<WindowFit>> fits =
      plan_phases<WindowFit>(plan, problem, caps, phases, fit, take, give_up_us);
  if (!fits) return std::nullopt;
  plan.geometry = make_geometry(LinesPlan{problem, std::move(*fits)});
  return plan;
}

// Whole phases, unless the workspace may be too small for the lines of one.
std::optional<Plan> plan_lines(const ConvProblem& problem, const DeviceCaps& caps,
                               double give_up_us) {
  const std::vector<GatherPhase> phases = find_phases(problem, caps);
  if (phases.empty()) return std::nullopt;
  return plan_phases_of(problem, caps, phases, give_up_us);
}

// A sum of predictions may be rounded upwards, a difference from a limit downwards.
constexpr double kRounding = 1 + 1e-9;

Consideration consider(const ConvProblem& p, const DeviceCaps& caps, const SearchLimits& limits) {
  if (std::string why = refuse_wgmma_gather(p, caps); !why.empty()) return Refusal{why};
  if (std::string unreached = refuse_unreached_pixels(p); !unreached.empty()) {
    return Refusal{unreached};
  }
  std::optional<Plan> plan = plan_lines(p, caps, limits.give_up_us);
  const ConvProblem flat = flatten_pixels(p, 2);
  if (flat.N != p.N) {
    const double most_us = plan ? plan->predicted_us : limits.give_up_us;
    std::optional<Plan> other = plan_lines(flat, caps, most_us * kRounding);
    if (other && other->predicted_us < most_us) plan = std::move(other);
  }
  if (!plan) return Refusal{"no tile fits in shared memory, or no line in the workspace"};
  return std::move(*plan);
}

}  // namespace

void WindowShape::describe(Text& out) const {
  out << "tile " << kWindowFilters * filter_groups << " filters x " << windows() * columns
      << " positions";
  describe_stages(out, source_stages, resident ? 0 : filter_stages);
  if (resident) out << ", resident filters";
  describe_split(out, splits);
  if (walks()) out << (pace == Pace::kCarry ? ", streams and carries sectors" : ", streams");
  if (box_columns > 0) out << ", TMA boxes of " << box_rows << "x" << box_columns << " pixels";
  out << ", " << lane_bytes << " bytes of channels, " << name_of(math);
}

Engine cuda_lines_engine() {
  return {.id = EngineId::kCudaLines,
          .name = "cuda_lines",
          .consider = consider,
          .bound_us = bound_lines_us};
}

}  // namespace convx
