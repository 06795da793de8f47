#include <algorithm>
#include <span>

#include "core/gather_view.h"
#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/bands_geometry.h"
#include "planning/refusals.h"

namespace convx {
namespace {

constexpr int64_t kMostReach = 240;  // columns from a row's first tap to its last

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.groups != p.C) return "it needs as many groups as channels";
  if (std::string refusal = refuse_split_math(p); !refusal.empty()) return refusal;
  if (p.pass == Pass::kInputGrad && (p.stride != Hw{1, 1} || p.K != p.C)) {
    return "it computes the input gradient for stride 1 and one filter per channel only";
  }
  if (p.stride.w != 1) return "its columns slide by one";
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  if ((p.S - 1) * p.dilation.w + 1 > kMostReach)
    return "taps of a row are more than 240 columns apart";
  const GatherTensors tensors = make_gather_tensors(p);
  if ((tensors.source_w > 1 && tensors.source_strides.w != 1) ||
      (tensors.target_w > 1 && tensors.target_strides.w != 1)) {
    return "columns are not neighbours in the memory of both input and output";
  }
  return "";
}

Plan make_plan(BandsFit fit) {
  const BandsParams& p = fit.params;
  Plan plan;
  plan.engine = EngineId::kCudaBands;
  plan.tile = {int64_t{p.tile_rows} * p.tile_images, fit.columns(),
               int64_t{fit.steps} * p.groups * fit.depth};
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(std::move(fit));
  return plan;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  BandsFit fit = fit_bands(problem, caps);
  if (fit.blocks == 0) return Refusal{"no tile fits in shared memory"};
  if (fit.blocks >= int64_t{1} << 31) return Refusal{"there are more than 2^31 tiles"};
  return make_plan(std::move(fit));
}

std::optional<Plan> plan_tile(const ConvProblem& problem, const DeviceCaps& caps,
                              const BandsTile& tile) {
  BandsFit fit = fit_bands(problem, caps, {&tile, 1});
  if (fit.blocks == 0) return std::nullopt;
  return make_plan(std::move(fit));
}

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  for (const BandsTile& tile : kBandTiles) {
    if (variant == tile.name) return plan_tile(problem, caps, tile);
  }
  return std::nullopt;
}

// Tiles that differ from the planned one and from each other.
std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps& caps) {
  std::vector<Plan> plans = {make_plan(fit_bands(problem, caps))};
  std::vector<const char*> names;
  for (const BandsTile& tile : kBandTiles) {
    const std::optional<Plan> other = plan_tile(problem, caps, tile);
    const auto is_same = [&](const Plan& p) {
      return p.tile.m == other->tile.m && p.tile.n == other->tile.n;
    };
    if (!other || std::any_of(plans.begin(), plans.end(), is_same)) continue;
    plans.push_back(*other);
    names.push_back(tile.name);
  }
  return names;
}

}  // namespace

void BandsFit::describe(Text& out) const {
  out << "tile " << params.tile_images << "x" << params.tile_rows << "x" << columns()
      << " pixels (images x rows x columns), bands of " << params.groups << " x " << steps
      << " steps of " << depth << " columns, " << count_text(params.warps, "warp");
}

Engine cuda_bands_engine() {
  return {.id = EngineId::kCudaBands,
          .name = "cuda_bands",
          .consider = consider,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
