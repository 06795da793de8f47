// Plans of engines that multiply float32 as scaled fp16 first (half_scales.cuh). Their exact
// kernels are launched behind it, and return early unless the values were unsuitable
// (must_return).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/device_caps.h"
#include "core/engine.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/text.h"
#include "planning/gather_axis.h"
#include "planning/tensor_math.h"

namespace convx {

// The plan of one phase of a gather (core/gather_view.h). Fit: an engine's shape and the kernel
// parameters that do not depend on the call.
template <typename Fit>
struct HalvedPlan {
  Fit exact;
  // If set, scaled fp16 runs first, and the kernels of exact return early unless the values are
  // unsuitable.
  std::optional<Fit> half;
  int64_t scale_bytes = 0;  // size of HalfScales, at the start of the workspace
};

// The phases run one after the other in the same workspace.
template <typename Fit>
using PhasedPlan = std::vector<HalvedPlan<Fit>>;

struct Halves {
  TensorMath math;
  int min_terms;
  int64_t scale_bytes;
};

// The scaled fp16 form of a phase with so many taps, or nothing if its dtype or its number of terms
// rules it out. The values are not known yet.
inline std::optional<Halves> find_halves(const ConvProblem& problem, int64_t taps) {
  if (problem.dtype != DType::kFloat32) return {};
  const GatherTensors view = make_gather_tensors(problem);
  const bool tf32 = problem.precision == Precision::kTf32;
  // One fp16 component is as precise as TF32, however short the sum is. "ieee" needs min_terms
  // non-zero terms; twice as many terms leave room for zeros.
  const int min_terms = tf32 ? 0 : kMinHalfIeeeTerms;
  if (view.source_channels * taps < 2 * min_terms) return {};
  return Halves{tf32 ? TensorMath::kHalfTf32 : TensorMath::kHalfIeee, min_terms,
                HalfScales::bytes(problem.groups * view.target_channels)};
}

// Describes the form that runs first and, if that is scaled fp16, the exact form behind it.
template <typename Fit>
void describe_halves(Text& out, const HalvedPlan<Fit>& plan) {
  if (plan.half) {
    plan.half->shape.describe(out);
    out << " first, else ";
  }
  plan.exact.shape.describe(out);
}

template <typename Fit>
void describe_phases(Text& out, const PhasedPlan<Fit>& phases) {
  write_counted(out, phases, "phase", describe_halves<Fit>);
}

// Whether another limit of the workspace might have led to another shape. Shapes that do not say
// are fitted again.
template <typename Shape>
bool depends_on_workspace(const Shape& shape) {
  if constexpr (requires { shape.depends_on_workspace; }) return shape.depends_on_workspace;
  return true;
}

// Plans a phase of so many taps, and adds its time to the whole plan. Returns nothing if no exact
// shape fits, or if the phase would take give_up_us or longer.
//   fit_shape(caps, math, give_up_us)  returns a shape, or nothing
//   take(shape, offset)  makes a Fit whose workspace starts at offset, and sets the plan's tile,
//                        split and workspace
template <typename Fit, typename FitShape, typename Take>
std::optional<HalvedPlan<Fit>> plan_halves(Plan& plan, const ConvProblem& problem,
                                           const DeviceCaps& caps, int64_t taps,
                                           const FitShape& fit_shape, const Take& take,
                                           double give_up_us = kNeverGiveUp) {
  HalvedPlan<Fit> made;
  const TensorMath math = tensor_math(problem);
  const std::optional<Halves> halves = find_halves(problem, taps);
  DeviceCaps rest = caps;
  if (halves) rest.workspace_limit -= halves->scale_bytes;
  decltype(fit_shape(rest, math, give_up_us)) half, behind;
  if (halves && rest.workspace_limit > 0) {
    half = fit_shape(rest, halves->math, give_up_us - kHalfMicroseconds);
  }
  // Behind scaled fp16 the exact form is never too slow.
  if (half) behind = fit_shape(rest, math, kNeverGiveUp);
  // With the workspace that scales would take, the exact form may be faster. It matters only if it
  // is then faster than scaled fp16; the factor is for sums that are rounded differently.
  constexpr double kRounding = 1 + 1e-9;
  const double half_us = half ? half->microseconds + kHalfMicroseconds : kNeverGiveUp;
  const double most_us = behind ? half_us * kRounding : half ? kNeverGiveUp : give_up_us;
  const bool has_exact = behind && !depends_on_workspace(*behind);
  auto exact = has_exact ? behind : fit_shape(caps, math, most_us);
  if (!exact && !behind) return std::nullopt;
  double microseconds = half_us;
  if (behind && (!exact || half_us < exact->microseconds)) {
    made.exact = take(std::move(*behind), halves->scale_bytes);
    made.half = take(std::move(*half), halves->scale_bytes);
    made.half->params.min_terms = halves->min_terms;
    made.scale_bytes = halves->scale_bytes;
    plan.halves = true;
  } else {
    microseconds = exact->microseconds;
    made.exact = take(std::move(*exact), 0);
  }
  plan.predicted_us += microseconds;
  return made;
}

// In NCHW each of several phases writes every stride-th value of a row, and memory reads and writes
// whole sectors for them. Fitted to four layers on an H200 (2026-11-18).
inline double predict_scattered_us(const ConvProblem& problem) {
  if (problem.stride.w == 1 || problem.x_strides.w != 1) return 0;
  constexpr double kScatteredBytesPerUs = 1e6;
  const double values = static_cast<double>(problem.N * problem.C * problem.H * problem.W);
  return values * static_cast<double>(size_of(problem.dtype)) / kScatteredBytesPerUs;
}

// Plans all phases. Returns nothing if a phase has no plan.
//   fit_shape(problem, caps, math, phase, give_up_us)  returns a shape, or nothing
//   rest_us  the least that all phases after each one take; may be empty
template <typename Fit, typename FitShape, typename Take>
std::optional<PhasedPlan<Fit>> plan_phases(Plan& plan, const ConvProblem& problem,
                                           const DeviceCaps& caps,
                                           const std::vector<GatherPhase>& phases,
                                           const FitShape& fit_shape, const Take& take,
                                           double give_up_us = kNeverGiveUp,
                                           const std::vector<double>& rest_us = {}) {
  PhasedPlan<Fit> planned;
  planned.reserve(phases.size());
  const double scattered_us = phases.size() > 1 ? predict_scattered_us(problem) : 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const GatherPhase& phase = phases[i];
    const double others_us = plan.predicted_us + scattered_us + (rest_us.empty() ? 0 : rest_us[i]);
    const auto fit = [&](const DeviceCaps& some, TensorMath math, double most_us) {
      return fit_shape(problem, some, math, phase, most_us);
    };
    auto next =
        plan_halves<Fit>(plan, problem, caps, phase.taps(), fit, take, give_up_us - others_us);
    if (!next) return std::nullopt;
    planned.push_back(std::move(*next));
  }
  plan.predicted_us += scattered_us;
  return planned;
}

// Launches a phase: scaled fp16, if planned, and then the exact kernels.
//   make_params(fit)       returns the kernel parameters of the call
//   launch(shape, params)  launches the kernels
template <typename Fit, typename MakeParams, typename Launch>
void launch_halves(const HalvedPlan<Fit>& plan, const Buffers& buffers,
                   const MakeParams& make_params, const Launch& launch) {
  auto exact = make_params(plan.exact);
  if (plan.half) {
    auto half = make_params(*plan.half);
    half.scales = static_cast<HalfScales*>(buffers.workspace);
    half.run_flag = exact.run_flag = &half.scales->unfit;
    half.run_if_zero = true;
    launch(plan.half->shape, half);
  }
  launch(plan.exact.shape, exact);
}

// Launches all phases. make_params(fit, offset) returns parameters whose workspace starts at
// offset.
template <typename Fit, typename MakeParams, typename Launch>
void launch_phases(const PhasedPlan<Fit>& phases, const Buffers& buffers,
                   const MakeParams& make_params, const Launch& launch) {
  for (const HalvedPlan<Fit>& phase : phases) {
    launch_halves(
        phase, buffers, [&](const Fit& fit) { return make_params(fit, phase.scale_bytes); },
        launch);
  }
}

}  // namespace convx
