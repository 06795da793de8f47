// Plans of cuda_depthwise: every kind of kernel that a pass has, of which the fastest by prediction
// wins. The other files *_fit.cpp of this folder fit one kind each.
#include "engines/cuda/depthwise/depthwise_geometry.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/weight_grad_geometry.h"
#include "planning/gather_axis.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

// With a large dilation, the lanes of a sliding axis can be shorter than the outputs that a thread
// computes at once. If that more than doubles the computed outputs, each tap becomes its own class.
GatherAxis fit_axis(const AxisPhase& phase, int64_t at_once) {
  const GatherAxis sliding = make_gather_axis(phase, true);
  const GatherAxis single = make_gather_axis(phase, false);
  const int64_t computed = sliding.lanes * round_up(sliding.count_per_lane(), at_once);
  return computed <= 2 * round_up(single.count, at_once) ? sliding : single;
}

DepthwiseTensors make_tensors(const ConvProblem& p, const GatherView& view, bool planes) {
  DepthwiseTensors t{};
  set_depthwise_tensors(p, view, t);
  t.images = narrow(p.N), t.channels = narrow(p.C), t.multiplier = narrow(p.filters_per_group());
  t.row = make_cuda_axis(fit_axis(view.rows[0], planes ? kPlaneRows : kChannelsLastRows));
  t.column = make_cuda_axis(planes ? fit_axis(view.columns[0], kDepthwiseVector)
                                   : make_gather_axis(view.columns[0], false));
  t.by_taps = FastDivmod(p.taps());
  t.by_column_taps = FastDivmod(p.S);
  return t;
}

// A weight gradient reads both tensors once for each channel and filter of a group.
constexpr int64_t kMostPairChannels = 16;

// All but whether a tile fits.
std::string refuse(const ConvProblem& p) {
  if (p.groups != p.C) {
    if (p.pass != Pass::kWeightGrad) return "it needs as many groups as channels";
    if (p.channels_per_group() > kMostPairChannels || p.filters_per_group() > kMostPairChannels) {
      return "a group has more than 16 channels or filters";
    }
  }
  if (p.pass == Pass::kInputGrad && p.K != p.C) {
    return "it computes the input gradient for one filter per channel only";
  }
  if (p.dtype == DType::kFloat64) return "it sums in float32";
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  if (p.N > kMaxExtent / p.C) return "there are more than 2^29 planes";
  if (p.pass != Pass::kWeightGrad && find_depthwise_layout(p) == DepthwiseLayout::kOther) {
    return "neither columns nor channels are neighbours in the memory of both input and output";
  }
  return "";
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaDepthwise;
  if (problem.pass == Pass::kWeightGrad) {
    DepthwiseWeightGradFit grad = fit_depthwise_weight_grad(problem, caps);
    if (std::visit([](const auto& fit) { return fit.blocks == 0; }, grad)) {
      return Refusal{
          "it computes the weight gradient of dense tensors, and with several filters or channels "
          "per group only in NCHW for some kernel sizes"};
    }
    if (const auto* strips = std::get_if<StripWeightGradFit>(&grad)) {
      plan.tile = {strips->params.segment_rows, strips->columns, 1};
      plan.split = strips->splits;
    } else {
      const auto& pixels = std::get<PixelWeightGradFit>(grad);
      const PixelWeightGradParams& tiles = pixels.params;
      const RowWeightGradParams& rows = pixels.rows.params;
      const bool by_rows = pixels.rows.blocks > 0;
      plan.tile = {tiles.segment_rows, tiles.tile_columns, tiles.chunk};
      if (by_rows) plan.tile = {1, row_grad_columns(tiles.t.row.source_step), rows.chunk};
      plan.split = by_rows ? pixels.rows.splits : pixels.splits;
    }
    const auto cost = [](const auto& fit) -> WeightGradCost { return fit; };
    const WeightGradCost found = std::visit(cost, grad);
    plan.workspace_bytes = found.workspace_bytes;
    plan.predicted_us = found.microseconds;
    plan.geometry = make_geometry(DepthwisePlan{std::move(grad)});
    return plan;
  }
  if (is_strided_input_grad(problem)) {
    const PhaseStripFit strips = fit_phase_strips(problem, caps);
    if (strips.blocks == 0) {
      return Refusal{
          "it computes strided input gradients of 3x3 and 5x5 kernels with stride 2 only"};
    }
    plan.tile = {kPhaseStride * strips.params.segment_rows, kPhaseStride, strips.channels};
    plan.predicted_us = strips.microseconds;
    plan.geometry = make_geometry(DepthwisePlan{strips});
    return plan;
  }
  const DepthwiseFit fit = fit_depthwise(problem, caps);
  if (fit.blocks == 0) return Refusal{"no tile fits in shared memory"};
  const PlaneParams& plane = fit.plane;
  const ChannelsLastParams& pixel = fit.pixel;
  if (fit.strip.shape >= 0) {
    plan.tile = {fit.strip.params.segment_rows, fit.strip.columns, 1};
  } else if (fit.layout == DepthwiseLayout::kPlanes) {
    plan.tile = {plane.tile_rows * plane.t.row.lanes, plane.tile_cols * plane.t.column.lanes,
                 plane.tile_planes};
  } else if (fit.pixel_strip.blocks > 0) {
    const PixelStripParams& strip = fit.pixel_strip.params;
    const PixelStripShape& shape = kPixelStripShapes[fit.pixel_strip.shape];
    plan.tile = {strip.segment_rows, pixel_strip_columns(shape.taps, shape.stride), strip.chunk};
  } else {
    plan.tile = {pixel.tile_rows * pixel.t.row.lanes, pixel.tile_cols, pixel.chunk};
  }
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(DepthwisePlan{fit});
  return plan;
}

// Every kernel reads and writes each byte once at least. Strided input gradients take no search,
// and end that of cuda_phases.
double bound_us(const ConvProblem& problem, const DeviceCaps& caps) {
  if (is_strided_input_grad(problem)) return 0;
  const double scale = std::max(caps.sm_count, 1) / kDepthwiseReferenceSms;
  return kDepthwiseLaunchUs + count_bytes(problem) / kBoxBytesPerUs / scale;
}

}  // namespace

DepthwiseLayout find_depthwise_layout(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  // The NCHW kernels need target rows without gaps, as PyTorch allocates them.
  if (from.w == 1 && to.w == 1 && to.h == view.target_w) return DepthwiseLayout::kPlanes;
  if (from.c == 1 && to.c == 1) return DepthwiseLayout::kPixels;
  return DepthwiseLayout::kOther;
}

DepthwiseTensors make_plane_tensors(const ConvProblem& problem) {
  return make_tensors(problem, make_gather_view(problem), true);
}

DepthwiseTensors make_pixel_tensors(const ConvProblem& problem) {
  return make_tensors(problem, make_gather_view(problem), false);
}

DepthwiseFit fit_depthwise(const ConvProblem& problem, const DeviceCaps& caps) {
  DepthwiseFit fit;
  fit.layout = find_depthwise_layout(problem);
  if (fit.layout == DepthwiseLayout::kPlanes) {
    fit.plane.t = make_plane_tensors(problem);
    fit_planes(problem, caps, fit);
    fit_strips(problem, caps, fit);
  } else if (fit.layout == DepthwiseLayout::kPixels) {
    fit.pixel.t = make_pixel_tensors(problem);
    fit_channels_last(problem, caps, fit);
    fit_pixel_strips(problem, caps, fit);
  }
  return fit;
}

void DepthwiseFit::describe(Text& out) const {
  if (strip.shape >= 0) {
    out << "strips of " << strip.params.segment_rows << "x" << strip.columns << " pixels";
  } else if (layout == DepthwiseLayout::kPlanes) {
    out << "tile " << plane.tile_rows * plane.t.row.lanes << "x"
        << plane.tile_cols * plane.t.column.lanes << " pixels of "
        << count_text(plane.tile_planes, "plane") << ", " << plane_taps << " taps at once";
  } else if (pixel_strip.blocks > 0) {
    const auto [taps, stride] = kPixelStripShapes[pixel_strip.shape];
    out << "strips of " << pixel_strip.params.segment_rows << "x"
        << pixel_strip_columns(taps, stride) << " pixels, "
        << count_text(pixel_strip.params.chunk, "channel");
  } else {
    out << "tile " << pixel.tile_rows * pixel.t.row.lanes << "x" << pixel.tile_cols << " pixels x "
        << pixel.chunk << " channels";
  }
}

void PhaseStripFit::describe(Text& out) const {
  out << "strips of " << kPhaseStride * params.segment_rows << "x" << kPhaseStride
      << " pixels of all phases, " << count_text(channels, "channel");
}

void StripWeightGradFit::describe(Text& out) const {
  out << "strips of " << params.segment_rows << "x" << columns << " pixels";
  describe_split(out, splits);
}

void PixelWeightGradFit::describe(Text& out) const {
  if (rows.blocks > 0) {
    out << "rows of taps in registers, " << rows.params.chunk << " channels";
    describe_split(out, rows.splits);
    out << ", if aligned, else ";
  }
  out << "tile " << params.segment_rows << "x" << params.tile_columns << " pixels x "
      << params.chunk << " channels";
  describe_stages(out, params.stages);
  describe_split(out, splits);
  if (params.uses_boxes) out << ", TMA boxes";
}

void DepthwisePlan::describe(Text& out) const {
  const auto write = [&](const auto& fit) { fit.describe(out); };
  if (const auto* grad = std::get_if<DepthwiseWeightGradFit>(&pass)) {
    std::visit(write, *grad);
  } else if (const auto* strips = std::get_if<PhaseStripFit>(&pass)) {
    write(*strips);
  } else {
    write(std::get<DepthwiseFit>(pass));
  }
}

Engine cuda_depthwise_engine() {
  return {.id = EngineId::kCudaDepthwise,
          .name = "cuda_depthwise",
          .consider = consider,
          .bound_us = bound_us,
          .typical_ratio = 1.35,
          .separate_pass_us = pass_us_unless_relu};
}

}  // namespace convx
