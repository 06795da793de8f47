#include <algorithm>
#include <utility>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda/input_grad/phases_shape.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Looking for infinities in y, and a kernel that returns at once. Derived, not fitted.
constexpr double kScanUs = 4;
constexpr double kScanBytesPerUs = 3.4e6;

int narrow(int64_t value) { return static_cast<int>(value); }

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

void set_scan_unit(ScanParams& scan, const ConvProblem& p, int unit) {
  scan.unit = unit;
  scan.by_units = FastDivmod(p.K / unit);
  scan.image_units = narrow(p.K * p.P * p.Q / unit);
}

std::optional<PhasesShape> fit_row_phases(const ConvProblem& p, const DeviceCaps& caps) {
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
  for (size_t i = 0; i < phases.size(); ++i) {
    ConvProblem inner;
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
    std::optional<InnerProblem> planned =
        plan_inner(inner, caps, caps.workspace_limit - shape.filter_bytes);
    if (!planned) return std::nullopt;
    RowPhase& row = shape.rows[i];
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
