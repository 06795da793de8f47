#include <algorithm>
#include <utility>

#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"
#include "planning/boxed_tensor.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass != Pass::kWeightGrad) return "it computes the weight gradient only";
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  // cuda_gemm computes a 1x1 layer as a matrix product, and packs nothing. This engine serves those
  // that it reads in place as well: adjacent columns by rows, channels_last by TMA.
  const int64_t element = size_of(p.dtype);
  const bool has_adjacent_columns = p.x_strides.w == 1 && p.y_strides.w == 1;
  const bool has_pixels =
      has_boxes(p.x_strides, p.C, element) && has_boxes(p.y_strides, p.K, element);
  if (p.taps() == 1 && p.groups == 1 && p.stride == Hw{1, 1} && !has_adjacent_columns &&
      !has_pixels) {
    return "a 1x1 layer of stride 1 is a matrix product, for which cuda_gemm packs nothing";
  }
  if (p.R > kMaxExtent / p.dilation.h || p.S > kMaxExtent / p.dilation.w) {
    return "the dilated kernel spans more than 2^29 pixels";
  }
  return fits_wgrad(p, caps, exact_form(p)) ? ""
                                            : "no tile fits in shared memory and the workspace";
}

// The fastest geometry of a form, if it is faster than give_up_us. An MMA has 64 filters and up to
// 256 channels: transposed, a layer of more filters than channels has wider MMAs, which read less
// of shared memory. Blocks that convert their operands need it for those as well, so they are
// transposed even if memory limits them.
std::optional<WgradFit> fit_form(const ConvProblem& problem, const DeviceCaps& caps,
                                 OperandForm form, double give_up_us) {
  std::optional<WgradFit> best = fit_wgrad(problem, caps, form, true, give_up_us);
  const std::optional<ConvProblem> transposed = transpose_weight_grad(problem);
  if (!transposed || !can_convert(form)) return best;
  // Either of two equal predictions may win.
  const double most_us = best ? best->microseconds * (1 + 1e-9) : give_up_us;
  std::optional<WgradFit> other = fit_positions(*transposed, caps, form, true, most_us);
  if (!other || !other->geometry.converts()) return best;
  if (best) {
    const bool is_wider = other->geometry.columns > best->geometry.columns;
    if (best->microseconds < other->microseconds) return best;
    if (best->microseconds == other->microseconds && !is_wider) return best;
  }
  other->is_transposed = true;
  return other;
}

// What is measured and checked before a scaled form, and the kernels of the exact form that then
// return at once.
constexpr double kScalesUs = 12;

// The fastest geometry of the form that represents every value.
std::optional<WgradFit> fit_exact(const ConvProblem& problem, const DeviceCaps& caps,
                                  double give_up_us) {
  std::optional<WgradFit> best = fit_form(problem, caps, exact_form(problem), give_up_us);
  if (problem.dtype == DType::kFloat32 && problem.precision == Precision::kTf32) {
    const double most_us = best ? best->microseconds : give_up_us;
    if (auto rounded = fit_row_boxes(problem, caps, OperandForm::kTf32, most_us)) best = rounded;
  }
  return best;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps,
                       const SearchLimits& limits) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  WgradPlan found;
  const bool has_scaled = problem.dtype == DType::kFloat32;
  const auto fit_scaled = [&](double give_up_us) {
    found.scaled = fit_form(problem, caps, scaled_form(problem), give_up_us);
  };
  if (has_scaled) fit_scaled(limits.give_up_us - kScalesUs);
  // Behind a scaled form the exact one is never too slow.
  std::optional<WgradFit> behind =
      fit_exact(problem, caps, found.scaled ? kNeverGiveUp : limits.give_up_us);
  if (!behind) return Refusal{"it is predicted to be slower than another engine"};
  found.exact = std::move(*behind);
  const WgradGeometry& exact = found.exact.geometry;
  // A form that needs neither packing nor scales may be the fastest.
  const bool packs_nothing = exact.converts() || exact.input_source == OperandSource::kRowBoxes;
  if (has_scaled && !found.scaled && !packs_nothing) fit_scaled(kNeverGiveUp);
  if (packs_nothing && found.scaled &&
      found.exact.microseconds <= found.scaled->microseconds + kScalesUs) {
    found.scaled.reset();
  }
  if (exact.alignment() > size_of(problem.dtype)) {
    found.misaligned = fit_wgrad(problem, caps, exact_form(problem), false);
  }
  const WgradFit& first = found.scaled ? *found.scaled : found.exact;
  const WgradGeometry& g = first.geometry;
  Plan plan;
  plan.engine = EngineId::kCudaWeightGrad;
  plan.tile = {g.block_filter_tiles * kTileFilters,
               g.row_tiles.channel_sets * g.block_tap_groups * g.columns, kStagePositions};
  plan.split = g.slices;
  plan.halves = found.scaled.has_value();
  plan.workspace_bytes = kScaleBytes + found.exact.workspace_bytes;
  const auto reserve = [&](const std::optional<WgradFit>& other) {
    if (!other) return;
    plan.workspace_bytes = std::max(plan.workspace_bytes, kScaleBytes + other->workspace_bytes);
  };
  reserve(found.scaled);
  // Launches with aligned tensors never run found.misaligned.
  static_assert(WgradGeometry::kMostAlignment <= kAlignedBytes);
  const int64_t aligned_bytes = plan.workspace_bytes;
  reserve(found.misaligned);
  if (aligned_bytes < plan.workspace_bytes) plan.aligned_workspace_bytes = aligned_bytes;
  plan.predicted_us = first.microseconds + (found.scaled ? kScalesUs : 0);
  plan.geometry = make_geometry(std::move(found));
  return plan;
}

}  // namespace

void WgradFit::describe(Text& out) const {
  constexpr const char* kSources[] = {"packed tensors", "pixels by TMA",
                                      "pixels converted in the block", "rows in place",
                                      "rows by TMA"};
  const WgradGeometry& g = geometry;
  out << "tile " << g.block_filter_tiles * kTileFilters << " filters x "
      << g.row_tiles.channel_sets * g.block_tap_groups * g.columns << " columns";
  if (is_transposed) out << " of the transpose";
  describe_stages(out, g.stages);
  describe_split(out, g.slices);
  if (g.slices > 1 && g.writes_result) out << " in a cluster";
  out << ", " << kSources[static_cast<int>(g.input_source)] << ", " << name_of(form);
}

void WgradPlan::describe(Text& out) const {
  if (scaled) {
    scaled->describe(out);
    out << " first, else ";
  }
  exact.describe(out);
  if (misaligned) {
    out << ", if aligned, else ";
    misaligned->describe(out);
  }
}

Engine cuda_weight_grad_engine() {
  return {.id = EngineId::kCudaWeightGrad,
          .name = "cuda_weight_grad",
          .consider = consider,
          .bound_us = bound_weight_grad,
          .typical_ratio = 3};
}

}  // namespace convx
