#include "engines/cuda/input_grad/phases_shape.h"

#include <algorithm>
#include <utility>

#include "core/arithmetic.h"
#include "core/choose_engine.h"
#include "core/gather_view.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// kViews: one axis of a phase as an input gradient with stride 1.
struct ViewedAxis {
  int64_t start, step, count;         // of x
  int64_t taps, first_tap, tap_step;  // of w
  int64_t dilation, pad_before, pad_after;
  int64_t output;  // rows or columns of y that are read
};

std::optional<ViewedAxis> view_axis(const AxisPhase& phase, int64_t output) {
  const auto taps = static_cast<int64_t>(phase.taps.size());
  if (taps == 0) return std::nullopt;
  const AxisTap& first = phase.taps.front();
  ViewedAxis axis{
      phase.target_start, phase.target_step, phase.count, taps, first.tap, 1, 1, 0, 0, 0};
  if (taps > 1) {
    axis.tap_step = phase.taps[1].tap - first.tap;
    axis.dilation = first.offset - phase.taps[1].offset;
  }
  axis.pad_before = first.offset;
  axis.output = output;
  axis.pad_after = output - phase.count - axis.pad_before + axis.dilation * (taps - 1);
  if (axis.pad_after < 0) axis.output += std::exchange(axis.pad_after, 0);
  if (axis.pad_before < 0 || axis.output < 1) return std::nullopt;
  return axis;
}

std::optional<PhasesShape> fit_views(const ConvProblem& p, const DeviceCaps& caps,
                                     double give_up_us) {
  // The engines of dense layers run phases themselves.
  const bool has_pixels = p.x_strides.c == 1 && p.y_strides.c == 1;
  if (p.groups == 1 || !has_pixels || !refuse_many_phases(p).empty()) return std::nullopt;
  PhasesShape shape;
  shape.form = PhasesForm::kViews;
  const GatherView view = make_gather_view(p);
  double least_us = 0;  // of the phases that are not planned yet
  for (const AxisPhase& rows : view.rows) {
    for (const AxisPhase& columns : view.columns) {
      const std::optional<ViewedAxis> h = view_axis(rows, p.P), w = view_axis(columns, p.Q);
      if (!h || !w) return std::nullopt;
      ConvProblem inner = p;
      inner.H = h->count, inner.W = w->count;
      inner.R = h->taps, inner.S = w->taps;
      inner.P = h->output, inner.Q = w->output;
      inner.stride = {1, 1};
      inner.dilation = {h->dilation, w->dilation};
      inner.pad = {h->pad_before, h->pad_after, w->pad_before, w->pad_after};
      inner.x_strides.h *= h->step, inner.x_strides.w *= w->step;
      inner.w_strides.h *= h->tap_step, inner.w_strides.w *= w->tap_step;
      least_us += bound_inner_us(inner, caps);
      shape.views.push_back({{inner, {}},
                             h->start * p.x_strides.h + w->start * p.x_strides.w,
                             h->first_tap * p.w_strides.h + w->first_tap * p.w_strides.w});
    }
  }
  for (ViewedPhase& phase : shape.views) {
    least_us -= bound_inner_us(phase.problem, caps);
    std::optional<InnerProblem> planned = plan_inner(phase.problem, caps, caps.workspace_limit,
                                                     give_up_us - shape.microseconds - least_us);
    if (!planned) return std::nullopt;
    static_cast<InnerProblem&>(phase) = std::move(*planned);
    shape.workspace_bytes = std::max(shape.workspace_bytes, phase.plan.workspace_bytes);
    shape.microseconds += phase.plan.predicted_us;
  }
  return shape;
}

// kRows.

// Looking for infinities in y, and a kernel that returns at once. Derived, not fitted.
constexpr double kScanUs = 4;
constexpr double kScanBytesPerUs = 3.4e6;

// The rows of a phase as a forward convolution with stride 1.
struct ForwardAxis {
  int64_t taps, first_tap, tap_step;  // inner tap t is tap first_tap - t * tap_step of the kernel
  int64_t dilation, pad_before, pad_after;
  int64_t input;  // rows of y that are read
};

// Completes the padding for `count` outputs. Returns false if there are rows of y before the first
// that is read.
bool pad_axis(ForwardAxis& axis, int64_t first_offset, int64_t count, int64_t output) {
  axis.pad_before = -first_offset;
  axis.input = output;
  axis.pad_after = count + axis.dilation * (axis.taps - 1) - output - axis.pad_before;
  if (axis.pad_after < 0) axis.input += std::exchange(axis.pad_after, 0);
  return axis.pad_before >= 0 && axis.input > 0;
}

std::optional<ForwardAxis> find_rows(const AxisPhase& phase, int64_t output) {
  const auto taps = static_cast<int64_t>(phase.taps.size());
  if (taps == 0) return std::nullopt;
  const AxisTap& last = phase.taps.back();  // the one with the smallest offset
  ForwardAxis axis{taps, last.tap, 1, 1, 0, 0, 0};
  if (taps > 1) {
    axis.tap_step = phase.taps[1].tap - phase.taps[0].tap;
    axis.dilation = phase.taps[0].offset - phase.taps[1].offset;
  }
  if (!pad_axis(axis, last.offset, phase.count, output)) return std::nullopt;
  return axis;
}

// True if the pixels of each stride of a row are contiguous, and some tap reaches each of them.
bool has_folded_columns(const ConvProblem& p) {
  const bool pixels = p.x_strides.c == 1 && p.y_strides.c == 1 && p.x_strides.w == p.C;
  return p.groups == 1 && p.C > 1 && pixels && p.stride.w > 1 && p.dilation.w == 1 &&
         p.W % p.stride.w == 0 && p.S >= p.stride.w;
}

// One axis of the packing: a is the residue itself, because the frame is 0.
PackAxis pack_rows(const ForwardAxis& axis, int64_t kernel) {
  return {narrow(kernel), narrow(axis.first_tap), 0, narrow(-axis.tap_step),
          FastDivmod(axis.tap_step)};
}

FilterPack make_pack(const ConvProblem& p, const ForwardAxis& rows, const PhaseAxis& columns) {
  const PackAxis s{narrow(p.S), narrow(columns.pad - columns.step * columns.first_offset), 0,
                   narrow(-columns.step), FastDivmod(columns.step)};
  return make_phase_pack(p, pack_rows(rows, p.R), s, {rows.taps, columns.taps}, {1, columns.step},
                         true);
}

}  // namespace

std::optional<InnerProblem> plan_inner(ConvProblem problem, const DeviceCaps& caps,
                                       int64_t workspace_limit, double give_up_us) {
  if (workspace_limit < 0) return std::nullopt;
  const int64_t P = problem.P, Q = problem.Q;
  if (!validate(problem, problem.channels_per_group()).empty()) return std::nullopt;
  if (problem.P != P || problem.Q != Q) return std::nullopt;
  if (bound_inner_us(problem, caps) > give_up_us) return std::nullopt;
  DeviceCaps left = caps;
  left.workspace_limit = workspace_limit;
  Choice choice = choose_engine(cuda_engines(), problem, left, "auto", Listed::kEligible,
                                {.give_up_us = give_up_us});
  if (choice.chosen < 0) return std::nullopt;
  return InnerProblem{problem, std::move(choice.candidates[choice.chosen].plan)};
}

std::optional<PhaseAxis> fit_phase_frame(int64_t input, int64_t output, int64_t kernel,
                                         int64_t stride, int64_t pad, int64_t dilation,
                                         int64_t frame) {
  if (kernel == 1) dilation = 1;
  if (stride > 1 && dilation > 1) return std::nullopt;
  PhaseAxis axis{stride, pad, frame, std::min(kernel, stride)};
  axis.dilation = dilation;
  axis.count = (input - 1 + frame) / stride + 1;
  const int64_t last_offset = (pad - frame + stride - 1) / stride;
  const int64_t reach =
      (kernel - 1) * dilation - pad + frame;  // of the taps before the lattice point
  axis.first_offset = stride == 1 ? -reach : -std::max<int64_t>(reach, 0) / stride;
  // A convolution has no negative padding: more taps with weight 0 take its place.
  while (axis.first_offset > 0) axis.first_offset -= dilation;
  axis.taps = (last_offset - axis.first_offset) / dilation + 1;
  const auto find_pad_after = [&] {
    return axis.count + dilation * (axis.taps - 1) - output + axis.first_offset;
  };
  axis.count += std::max<int64_t>(-find_pad_after(), 0);
  axis.pad_after = find_pad_after();
  return axis;
}

std::optional<PhaseAxis> fit_phase_axis(int64_t input, int64_t output, int64_t kernel,
                                        int64_t stride, int64_t pad, int64_t dilation) {
  std::optional<PhaseAxis> best;
  // Frames that are a stride apart differ by a shift of the lattice.
  for (int64_t frame = 0; frame < stride && (frame <= pad || frame == 0); ++frame) {
    const std::optional<PhaseAxis> axis =
        fit_phase_frame(input, output, kernel, stride, pad, dilation, frame);
    if (axis && (!best || axis->taps * axis->count < best->taps * best->count)) best = axis;
  }
  return best;
}

FilterPack make_phase_pack(const ConvProblem& p, const PackAxis& r, const PackAxis& s,
                           const Hw& taps, const Hw& phases, bool phase_is_slowest) {
  const Strides& w = p.w_strides;
  const int64_t channels = p.filters_per_group();
  return make_filter_pack(
      {.groups = p.groups,
       .filters = p.channels_per_group(),
       .channels = channels,
       .packed_channels = channels,
       .taps = taps,
       .phases = phases},
      {.group = channels * w.n, .filter = w.c, .channel = w.n, .r = w.h, .s = w.w}, r, s,
      phase_is_slowest);
}

PhasePlace place_phases(const PhaseAxis& axis) {
  return {narrow(axis.pad), narrow(axis.frame), narrow(axis.kept), FastDivmod(axis.step)};
}

void set_target_geometry(InterleaveParams& to, const ConvProblem& p, const PhaseAxis& rows,
                         const PhaseAxis& columns) {
  to.target_strides = p.x_strides, to.source_strides = p.y_strides;
  to.filter_strides = p.w_strides;
  to.rows = place_phases(rows), to.columns = place_phases(columns);
  to.group_channels = narrow(p.channels_per_group()),
  to.group_filters = narrow(p.filters_per_group());
  to.kernel_rows = narrow(p.R), to.kernel_columns = narrow(p.S);
  to.dilation_h = narrow(p.dilation.h), to.dilation_w = narrow(p.dilation.w);
  to.source_height = narrow(p.P), to.source_width = narrow(p.Q);
  to.by_columns = FastDivmod(p.W), to.by_rows = FastDivmod(p.H);
  to.by_channels = FastDivmod(ceil_div(p.C, kPlaneChannels));
  to.channels = narrow(p.C), to.by_group_channels = FastDivmod(p.channels_per_group());
}

void set_interleave_unit(InterleaveParams& p, const ConvProblem& problem, int unit) {
  p.unit = unit;
  p.by_units = FastDivmod((p.has_pixels ? problem.C : problem.W) / unit);
  const int64_t channels = p.has_pixels ? problem.C : ceil_div(problem.C, kPlaneChannels);
  p.image_units = narrow(channels * problem.H * problem.W / unit);
}

std::optional<PhasesShape> fit_phases(const ConvProblem& p, const DeviceCaps& caps, PhasesForm form,
                                      double give_up_us) {
  switch (form) {
    case PhasesForm::kViews:
      return fit_views(p, caps, give_up_us);
    case PhasesForm::kRows:
      return fit_row_phases(p, caps, give_up_us);
    case PhasesForm::kChannels:
    case PhasesForm::kTransposed:
      return fit_chunked_phases(p, caps, form, give_up_us);
  }
  return std::nullopt;
}

double count_phase_products(const ConvProblem& p, PhasesForm form) {
  constexpr int64_t kTileFilters = 64;
  const bool by_rows = form == PhasesForm::kRows;
  const auto fit_axis = [&](int64_t input, int64_t output, int64_t kernel, int64_t stride,
                            int64_t pad, int64_t dilation) {
    return by_rows ? fit_phase_frame(input, output, kernel, stride, pad, dilation, 0)
                   : fit_phase_axis(input, output, kernel, stride, pad, dilation);
  };
  const auto rows = fit_axis(p.H, p.P, p.R, p.stride.h, p.pad.top, p.dilation.h);
  const auto columns = fit_axis(p.W, p.Q, p.S, p.stride.w, p.pad.left, p.dilation.w);
  if (!rows || !columns) return 0;
  const int64_t row_taps =
      by_rows ? count_input_grad_pairs(p.H, p.R, p.stride.h, p.pad.top, p.dilation.h)
              : rows->count * rows->taps;
  const int64_t phases = by_rows ? p.stride.w : rows->kept * columns->kept;
  const int64_t filters = round_up(p.channels_per_group() * phases, kTileFilters);
  return static_cast<double>(p.N * p.K * row_taps) *
         static_cast<double>(columns->count * columns->taps * filters);
}

double bound_inner_us(const ConvProblem& p, const DeviceCaps& caps) {
  // Above the rates of all engines' models: 16-bit multiply-adds of a multiprocessor, and bytes,
  // some of which may be in L2.
  constexpr double kProductsPerUs = 2400 * 1.7e3, kBytesPerUs = 7e6, kReferenceSms = 132;
  constexpr double kLaunchUs = 1;
  const DeviceRates rates = rates_of(caps);
  const double sms = std::max(caps.sm_count, 1);
  const double work =
      count_gather_products(p) / (sms * kProductsPerUs * std::max(1.0, rates.clock));
  const double memory = count_bytes(p) / kBytesPerUs / std::max(rates.memory, sms / kReferenceSms);
  return kLaunchUs + std::max(work, memory);
}

double bound_phases_us(const ConvProblem& p, const DeviceCaps& caps) {
  // Phases may share the bytes and the products of one convolution, and leave out those of pixels
  // that no tap reads or reaches.
  if (p.pass != Pass::kInputGrad || p.N == 0) return 0;
  ConvProblem inner = p;
  const auto covers = [](int64_t kernel, int64_t dilation, int64_t before, int64_t after) {
    return (kernel - 1) * dilation >= std::max(before, after);
  };
  const bool reads_all = covers(p.R, p.dilation.h, p.pad.top, p.pad.bottom) &&
                         covers(p.S, p.dilation.w, p.pad.left, p.pad.right);
  if (!reads_all) inner.K = 0;
  return bound_inner_us(inner, caps);
}

void set_scan_unit(ScanParams& scan, const ConvProblem& p, int unit) {
  scan.unit = unit;
  scan.by_units = FastDivmod(p.K / unit);
  scan.image_units = narrow(p.K * p.P * p.Q / unit);
  scan.element_bytes = narrow(size_of(p.dtype));
  scan.exponent = p.dtype == DType::kFloat64    ? 0x7ff00000u  // of the high word
                  : p.dtype == DType::kFloat32  ? 0x7f800000u
                  : p.dtype == DType::kBFloat16 ? 0x7f80u
                                                : 0x7c00u;
  scan.high_exponent = scan.element_bytes == 2 ? scan.exponent << 16 : scan.exponent;
}

std::optional<PhasesShape> fit_row_phases(const ConvProblem& p, const DeviceCaps& caps,
                                          double give_up_us) {
  if (!has_folded_columns(p) || !refuse_many_phases(p).empty()) return std::nullopt;
  if (std::max(p.C * p.H * p.W, p.K * p.P * p.Q) >= kMostPhaseElements) return std::nullopt;
  const std::optional<PhaseAxis> columns =
      fit_phase_frame(p.W, p.Q, p.S, p.stride.w, p.pad.left, p.dilation.w, 0);
  ForwardAxis across{columns->taps, 0, 1, 1, 0, 0, 0};
  const int64_t count = p.W / p.stride.w;
  if (!pad_axis(across, columns->first_offset, count, p.Q)) return std::nullopt;
  PhasesShape shape;
  shape.form = PhasesForm::kRows;
  const int64_t size = size_of(p.dtype);
  const std::vector<AxisPhase> phases = make_gather_view(p).rows;
  const DeviceRates rates = rates_of(caps);
  std::vector<ForwardAxis> down;
  shape.filter_bytes = kPhasesAlignment;  // the flag
  for (const AxisPhase& phase : phases) {
    const std::optional<ForwardAxis> rows = find_rows(phase, p.P);
    if (!rows) return std::nullopt;
    const int64_t weights = p.K * p.C * p.stride.w * rows->taps * across.taps;
    if (weights >= kMostPhaseElements) return std::nullopt;
    down.push_back(*rows);
    RowPhase& row = shape.rows.emplace_back();
    row.pack = make_pack(p, *rows, *columns);
    row.x_offset = phase.target_start * p.x_strides.h;
    row.filter_offset = shape.filter_bytes;
    shape.filter_bytes += round_up(weights * size, kPhasesAlignment);
    shape.microseconds += predict_packing(static_cast<double>(weights * size), rates.memory);
  }
  double least_us = 0;  // of the phases that are not planned yet
  for (size_t i = 0; i < phases.size(); ++i) {
    ConvProblem& inner = shape.rows[i].problem;
    inner.pass = Pass::kForward;
    inner.dtype = p.dtype, inner.precision = p.precision;
    inner.N = p.N, inner.C = p.K, inner.H = down[i].input, inner.W = across.input;
    inner.K = p.C * p.stride.w, inner.R = down[i].taps, inner.S = across.taps;
    inner.P = phases[i].count, inner.Q = count;
    inner.dilation = {down[i].dilation, 1};
    inner.pad = {down[i].pad_before, down[i].pad_after, across.pad_before, across.pad_after};
    inner.x_strides = p.y_strides;
    inner.w_strides = channels_last_strides(p.K, inner.R, inner.S);
    const Strides& x = p.x_strides;
    inner.y_strides = {x.n, 1, x.h * p.stride.h, x.w * p.stride.w};
    least_us += bound_inner_us(inner, caps);
  }
  for (RowPhase& row : shape.rows) {
    least_us -= bound_inner_us(row.problem, caps);
    std::optional<InnerProblem> planned =
        plan_inner(row.problem, caps, caps.workspace_limit - shape.filter_bytes,
                   give_up_us - shape.microseconds - least_us);
    if (!planned) return std::nullopt;
    static_cast<InnerProblem&>(row) = std::move(*planned);
    shape.workspace_bytes =
        std::max(shape.workspace_bytes, shape.filter_bytes + row.plan.workspace_bytes);
    shape.microseconds += row.plan.predicted_us;
  }
  InterleaveParams& target = shape.interleave;
  set_target_geometry(target, p, *columns, *columns);
  target.rows.pad = narrow(p.pad.top), target.rows.by_step = FastDivmod(p.stride.h);
  target.has_pixels = true;
  target.recomputes = columns->has_zero_taps(p.S);
  set_interleave_unit(target, p, 1);
  ScanParams& scan = shape.scan;
  const Strides& y = p.y_strides;
  scan.source_strides = y;
  scan.by_columns = FastDivmod(p.Q), scan.by_rows = FastDivmod(p.P);
  set_scan_unit(scan, p,
                fit_unit(size, p.K, p.N > 1 ? y.n : 0, p.P > 1 ? y.h : 0, p.Q > 1 ? y.w : 0));
  if (target.recomputes) {
    const auto bytes = static_cast<double>(p.N * p.K * p.P * p.Q * size);
    shape.microseconds += kScanUs + bytes / (kScanBytesPerUs * rates.memory);
  }
  return shape;
}

}  // namespace convx
