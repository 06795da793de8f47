#include "engines/cuda_phases/phases_shape.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "core/arithmetic.h"
#include "core/choose_engine.h"
#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_staging.h"
#include "engines/device_rates.h"
#include "engines/engine_list.h"

namespace convx {
namespace {

// Results of a small chunk stay in L2 until they are interleaved; a large one makes better use of
// the inner convolution's tiles.
constexpr int64_t kChunkBytes[] = {int64_t{32} << 20, int64_t{96} << 20};

// Derived from the H200's bandwidth, not fitted: interleaving streams its bytes, and planes take
// more instructions per byte than pixels.
constexpr double kInterleaveUs = 2.5;
constexpr double kPixelBytesPerUs = 3.4e6, kPlaneBytesPerUs = 3.0e6;

int narrow(int64_t value) { return static_cast<int>(value); }

struct FoldedAxis {
  int64_t extent, stride;
};

// The stride of several axes that are one, from the fastest on; 0 if they are not. Axes of one
// element have no stride.
int64_t fold_axes(std::initializer_list<FoldedAxis> axes) {
  std::optional<int64_t> stride;
  int64_t next = 0;
  for (const FoldedAxis& axis : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride == 0 || axis.stride != (stride ? next : axis.stride)) return 0;
    if (!stride) stride = axis.stride;
    next = axis.extent * axis.stride;
  }
  return stride.value_or(1);
}

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

std::optional<PhasesShape> fit_views(const ConvProblem& p, const DeviceCaps& caps) {
  // The engines of dense layers run phases themselves.
  const bool has_pixels = p.x_strides.c == 1 && p.y_strides.c == 1;
  if (p.groups == 1 || !has_pixels || !refuse_many_phases(p).empty()) return std::nullopt;
  PhasesShape shape;
  shape.form = PhasesForm::kViews;
  const GatherView view = make_gather_view(p);
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
      std::optional<InnerProblem> planned = plan_inner(inner, caps, caps.workspace_limit);
      if (!planned) return std::nullopt;
      shape.workspace_bytes = std::max(shape.workspace_bytes, planned->plan.workspace_bytes);
      shape.microseconds += planned->plan.predicted_us;
      shape.views.push_back({std::move(*planned),
                             h->start * p.x_strides.h + w->start * p.x_strides.w,
                             h->first_tap * p.w_strides.h + w->first_tap * p.w_strides.w});
    }
  }
  return shape;
}

// kChannels.
class ChannelFitter {
 public:
  ChannelFitter(const ConvProblem& problem, const DeviceCaps& caps, const PhaseAxis& rows,
                const PhaseAxis& columns)
      : p_(problem), caps_(caps), rows_(rows), columns_(columns) {
    phases_ = rows.kept * columns.kept;
    group_filters_ = p_.channels_per_group() * phases_;
    // Single channels have their columns in a row even if they are channels_last.
    has_pixels_ = p_.x_strides.c == 1 && p_.C > 1 && p_.x_strides.w != 1;
    result_image_ = p_.C * phases_ * rows_.count * columns_.count;
  }

  std::optional<PhasesShape> fit(int64_t chunk_bytes) {
    const int64_t target_image = p_.C * p_.H * p_.W;
    const int64_t weights = p_.C * phases_ * rows_.taps * columns_.taps * p_.filters_per_group();
    if (std::max({target_image, result_image_, weights}) >= kMostPhaseElements) return std::nullopt;
    const int64_t size = size_of(p_.dtype);
    shape_.filters_in_place = find_filters();
    if (!shape_.filters_in_place) shape_.filter_bytes = round_up(weights * size, kPhasesAlignment);
    const int64_t room = std::min(chunk_bytes, (caps_.workspace_limit - shape_.filter_bytes) / 2);
    const int64_t most = std::min(room / (result_image_ * size),
                                  kMostPhaseElements / std::max(target_image, result_image_));
    if (most < 1) return std::nullopt;
    const int64_t chunks = ceil_div(p_.N, most);
    shape_.chunk_images = ceil_div(p_.N, chunks);
    shape_.result_bytes = round_up(shape_.chunk_images * result_image_ * size, kPhasesAlignment);
    if (!plan_chunks()) return std::nullopt;
    set_pack();
    set_interleave();
    predict(weights);
    return std::move(shape_);
  }

 private:
  // The strides of the inner convolution's weights, [filter][source channel][tap][tap]. Returns
  // true if they are strides of w itself.
  bool find_filters() {
    const Strides& w = p_.w_strides;
    const int64_t taps = rows_.taps * columns_.taps;
    if (taps == 1 && p_.groups == 1) {
      // With one inner tap, phase k reads tap k.
      const FoldedAxis channel{p_.C, w.c}, row{rows_.kept, w.h}, column{columns_.kept, w.w};
      const int64_t stride =
          has_pixels_ ? fold_axes({channel, column, row}) : fold_axes({column, row, channel});
      if (stride > 0) {
        inner_weights_ = {stride, w.n, 1, 1};
        return true;
      }
    }
    inner_weights_ = channels_last_strides(p_.filters_per_group(), rows_.taps, columns_.taps);
    return false;
  }

  ConvProblem make_inner(int64_t images) const {
    ConvProblem inner;
    inner.pass = Pass::kForward;
    inner.dtype = p_.dtype, inner.precision = p_.precision;
    inner.N = images, inner.C = p_.K, inner.H = p_.P, inner.W = p_.Q;
    inner.K = p_.groups * group_filters_, inner.R = rows_.taps, inner.S = columns_.taps;
    inner.P = rows_.count, inner.Q = columns_.count;
    inner.groups = p_.groups;
    inner.dilation = {rows_.dilation, columns_.dilation};
    inner.pad = {-rows_.first_offset, rows_.pad_after, -columns_.first_offset, columns_.pad_after};
    inner.x_strides = p_.y_strides;
    inner.w_strides = inner_weights_;
    inner.y_strides = has_pixels_ ? channels_last_strides(inner.K, inner.P, inner.Q)
                                  : contiguous_strides(inner.K, inner.P, inner.Q);
    return inner;
  }

  bool plan_chunks() {
    const int64_t before = shape_.filter_bytes + shape_.result_bytes;
    const int64_t left = caps_.workspace_limit - before;
    std::optional<InnerProblem> whole = plan_inner(make_inner(shape_.chunk_images), caps_, left);
    if (!whole) return false;
    shape_.whole = std::move(*whole);
    if (const int64_t images = p_.N % shape_.chunk_images; images > 0) {
      std::optional<InnerProblem> rest = plan_inner(make_inner(images), caps_, left);
      if (!rest) return false;
      shape_.rest = std::move(*rest);
    }
    shape_.workspace_bytes =
        before + std::max(shape_.whole.plan.workspace_bytes, shape_.rest.plan.workspace_bytes);
    return true;
  }

  void set_pack() {
    const auto pack_axis = [](const PhaseAxis& axis, int64_t kernel) {
      const int64_t first = (axis.pad - axis.frame - axis.step * axis.first_offset) / axis.dilation;
      return PackAxis{narrow(kernel), narrow(first),
                      narrow(floor_mod(axis.frame - axis.pad, axis.step)), narrow(-axis.step),
                      FastDivmod(axis.step)};
    };
    shape_.pack =
        make_phase_pack(p_, pack_axis(rows_, p_.R), pack_axis(columns_, p_.S),
                        {rows_.taps, columns_.taps}, {rows_.kept, columns_.kept}, has_pixels_);
  }

  void set_interleave() {
    InterleaveParams& to = shape_.interleave;
    const int64_t plane = rows_.count * columns_.count;
    const int64_t channels = p_.channels_per_group();
    to.result_n = result_image_;
    if (has_pixels_) {
      const int64_t pixel = p_.C * phases_;
      to.result_group = group_filters_, to.result_c = 1;
      to.result_h = columns_.count * pixel, to.result_w = pixel;
      to.result_column_phase = channels, to.result_row_phase = columns_.kept * channels;
    } else {
      to.result_c = phases_ * plane, to.result_group = channels * to.result_c;
      to.result_h = columns_.count, to.result_w = 1;
      to.result_column_phase = plane, to.result_row_phase = columns_.kept * plane;
    }
    set_target_geometry(to, p_, rows_, columns_);
    to.has_pixels = has_pixels_;
    to.recomputes = rows_.has_zero_taps(p_.R) || columns_.has_zero_taps(p_.S);
    const Strides& x = p_.x_strides;
    const int64_t n = p_.N > 1 ? x.n : 0, size = size_of(p_.dtype);
    const int64_t c = p_.C > 1 ? x.c : 0, h = p_.H > 1 ? x.h : 0, w = p_.W > 1 ? x.w : 0;
    const bool in_rows = p_.W == 1 || x.w == 1;
    set_interleave_unit(to, p_,
                        has_pixels_ ? fit_unit(size, channels, n, h, w)
                        : in_rows   ? fit_unit(size, p_.W, n, c, h)
                                    : 1);
  }

  void predict(int64_t weights) {
    const DeviceRates rates = rates_of(caps_);
    const auto size = static_cast<double>(size_of(p_.dtype));
    const int64_t chunks = p_.N / shape_.chunk_images;
    const auto images = static_cast<double>(p_.N);
    // Results that are no longer in L2 have been written to memory and come back from there.
    const double far = 1 - find_near_share(static_cast<double>(shape_.result_bytes));
    const double bytes =
        images * size *
        (static_cast<double>(p_.C * p_.H * p_.W) + (1 + far) * static_cast<double>(result_image_));
    const double rate = (has_pixels_ ? kPixelBytesPerUs : kPlaneBytesPerUs) * rates.memory;
    const double inner = static_cast<double>(chunks) * shape_.whole.plan.predicted_us +
                         shape_.rest.plan.predicted_us;
    const double packing = shape_.filters_in_place
                               ? 0
                               : predict_packing(static_cast<double>(weights) * size, rates.memory);
    shape_.microseconds = inner + packing + bytes / rate +
                          static_cast<double>(ceil_div(p_.N, shape_.chunk_images)) * kInterleaveUs;
  }

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  const PhaseAxis rows_, columns_;
  int64_t phases_, group_filters_, result_image_;
  bool has_pixels_;
  Strides inner_weights_;
  PhasesShape shape_;
};

}  // namespace

std::optional<InnerProblem> plan_inner(ConvProblem problem, const DeviceCaps& caps,
                                       int64_t workspace_limit) {
  if (workspace_limit < 0) return std::nullopt;
  const int64_t P = problem.P, Q = problem.Q;
  if (!validate(problem, problem.channels_per_group()).empty()) return std::nullopt;
  if (problem.P != P || problem.Q != Q) return std::nullopt;
  DeviceCaps left = caps;
  left.workspace_limit = workspace_limit;
  Choice choice = choose_engine(cuda_engines(), problem, left, "auto");
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

void set_target_geometry(InterleaveParams& to, const ConvProblem& p, const PhaseAxis& rows,
                         const PhaseAxis& columns) {
  to.target_strides = p.x_strides, to.source_strides = p.y_strides;
  to.filter_strides = p.w_strides;
  const auto place = [](const PhaseAxis& axis) {
    return PhasePlace{narrow(axis.pad), narrow(axis.frame), narrow(axis.kept),
                      FastDivmod(axis.step)};
  };
  to.rows = place(rows), to.columns = place(columns);
  to.group_channels = narrow(p.channels_per_group()),
  to.group_filters = narrow(p.filters_per_group());
  to.kernel_rows = narrow(p.R), to.kernel_columns = narrow(p.S);
  to.dilation_h = narrow(p.dilation.h), to.dilation_w = narrow(p.dilation.w);
  to.source_height = narrow(p.P), to.source_width = narrow(p.Q);
  to.by_columns = FastDivmod(p.W), to.by_rows = FastDivmod(p.H);
  to.by_channels = FastDivmod(p.C), to.by_group_channels = FastDivmod(p.channels_per_group());
}

void set_interleave_unit(InterleaveParams& p, const ConvProblem& problem, int unit) {
  p.unit = unit;
  p.by_units = FastDivmod((p.has_pixels ? problem.C : problem.W) / unit);
  p.image_units = static_cast<int>(problem.C * problem.H * problem.W / unit);
}

std::optional<PhasesShape> fit_phases(const ConvProblem& p, const DeviceCaps& caps,
                                      PhasesForm form) {
  if (form == PhasesForm::kViews) return fit_views(p, caps);
  if (form == PhasesForm::kRows) return fit_row_phases(p, caps);
  const std::optional<PhaseAxis> rows =
      fit_phase_axis(p.H, p.P, p.R, p.stride.h, p.pad.top, p.dilation.h);
  const std::optional<PhaseAxis> columns =
      fit_phase_axis(p.W, p.Q, p.S, p.stride.w, p.pad.left, p.dilation.w);
  if (!rows || !columns) return std::nullopt;
  std::optional<PhasesShape> best;
  for (const int64_t chunk_bytes : kChunkBytes) {
    std::optional<PhasesShape> shape = ChannelFitter(p, caps, *rows, *columns).fit(chunk_bytes);
    if (shape && (!best || shape->microseconds < best->microseconds)) best = std::move(shape);
    if (best && best->chunk_images == p.N) break;
  }
  return best;
}

}  // namespace convx
