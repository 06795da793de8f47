#include <utility>

#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/direct/direct_costs.h"
#include "engines/cuda/direct/gather_geometry.h"
#include "engines/cuda/direct/weight_grad_geometry.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse_large_extents(problem); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaDirect;
  if (problem.pass == Pass::kWeightGrad) {
    const WeightGradShape shape = fit_weight_grad_shape(problem, caps);
    const WeightGradConfig& config = kWeightGradConfigs[shape.config];
    plan.tile = {config.filters, config.columns, shape.config};
    plan.split = shape.split;
    plan.workspace_bytes = shape.workspace_bytes;
    plan.predicted_us = shape.microseconds;
    plan.geometry = make_geometry(DirectPlan{make_weight_grad_fit(problem, shape)});
    return plan;
  }
  GatherShape shape = fit_gather_shape(problem, caps);
  const GatherConfig& config = kGatherConfigs[shape.config];
  plan.tile = {config.filters(), config.strips() * 8, shape.config};
  // Weights are read in place, more slowly, if the packed ones exceed the workspace limit or the
  // problem is so small that packing would take longer than it saves.
  const bool pack =
      shape.packed_bytes <= caps.workspace_limit && shape.microseconds > kDirectWorthPackingUs;
  plan.workspace_bytes = pack ? shape.packed_bytes : 0;
  plan.predicted_us = shape.microseconds;
  plan.geometry = make_geometry(DirectPlan{complete_gather(problem, std::move(shape), pack)});
  return plan;
}

// Weight gradients need no search.
double bound_us(const ConvProblem& problem, const DeviceCaps& caps) {
  return problem.pass == Pass::kWeightGrad ? 0 : bound_gather_us(problem, caps);
}

}  // namespace

void GatherShape::describe(Text& out) const {
  const GatherConfig& tile = kGatherConfigs[config];
  out << "tile " << count_text(tile.filters(), "filter") << " x " << params.tile_images << "x"
      << params.rows << "x" << params.strips * kStrip
      << " pixels (images x rows x columns), chunks of " << count_text(params.channels, "channel")
      << " x " << params.row_taps << "x" << params.column_taps << " taps"
      << (params.packed ? ", packed filters" : "");
}

void WeightGradFit::describe(Text& out) const {
  constexpr const char* kKernels[] = {"wide", "narrow", "pixel"};
  const WeightGradConfig& tile = kWeightGradConfigs[shape.config];
  out << "tile " << count_text(tile.filters, "filter") << " x " << tile.columns << " columns"
      << (shape.is_transposed ? " of the transpose" : "");
  describe_split(out, shape.split);
  out << ", " << kKernels[static_cast<int>(tile.kernel)] << " kernel";
}

void DirectPlan::describe(Text& out) const {
  std::visit([&](const auto& planned) { planned.describe(out); }, pass);
}

Engine cuda_direct_engine() {
  return {.id = EngineId::kCudaDirect,
          .name = "cuda_direct",
          .consider = consider,
          .bound_us = bound_us,
          .typical_ratio = 1.8,
          .separate_pass_us = pass_us_unless_relu};
}

}  // namespace convx
