#include "engines/cuda_direct/cuda_direct_plan.h"

#include <algorithm>

#include "engines/cuda_direct/cuda_direct_costs.h"
#include "engines/cuda_direct/gather_shape.h"
#include "engines/cuda_direct/weight_grad_shape.h"

namespace convx {
namespace {

// Positions within an image, and offsets between taps, are 32-bit in the kernels.
constexpr int64_t kMaxExtent = int64_t{1} << 29;

std::string refuse(const ConvProblem& p, const DeviceCaps&) {
  const int64_t reach_h = p.H + p.pad.top + p.pad.bottom;
  const int64_t reach_w = p.W + p.pad.left + p.pad.right;
  if (std::max({reach_h, reach_w, p.N, p.C, p.K, p.stride.h, p.stride.w, p.dilation.h,
                p.dilation.w}) > kMaxExtent) {
    return "an extent is above 2^29";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaDirect;
  if (problem.pass == Pass::kWeightGrad) {
    const WeightGradShape shape = fit_weight_grad_shape(problem, caps, -1);
    const WeightGradConfig& config = kWeightGradConfigs[shape.config];
    plan.tile = {config.filters, config.columns, shape.config};
    plan.split = shape.split;
    plan.workspace_bytes = shape.workspace_bytes;
    plan.predicted_us = shape.microseconds;
    return plan;
  }
  const GatherShape shape = fit_gather_shape(problem, caps, -1);
  const GatherConfig& config = kGatherConfigs[shape.config];
  plan.tile = {config.filters(), config.strips() * 8, shape.config};
  // Weights that do not fit are read in place, more slowly; so are those of problems so small that
  // packing them would take longer than it saves.
  const bool pack =
      shape.packed_bytes <= caps.workspace_limit && shape.microseconds > kDirectWorthPackingUs;
  plan.workspace_bytes = pack ? shape.packed_bytes : 0;
  plan.predicted_us = shape.microseconds;
  return plan;
}

}  // namespace

Engine cuda_direct_engine() { return {EngineId::kCudaDirect, "cuda_direct", refuse, plan}; }

}  // namespace convx
