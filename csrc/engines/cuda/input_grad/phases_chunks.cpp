// The forms that compute chunks of images in the workspace: kChannels and kTransposed.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "core/arithmetic.h"
#include "engines/cuda/input_grad/phases_shape.h"
#include "planning/device_rates.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Results of a small chunk stay in L2 until they are interleaved; a large one makes better use of
// the inner convolution's tiles.
constexpr int64_t kChunkBytes[] = {int64_t{32} << 20, int64_t{96} << 20};

// Derived from the H200's bandwidth, not fitted: interleaving streams its bytes, and planes take
// more instructions per byte than pixels.
constexpr double kInterleaveUs = 2.5;
constexpr double kPixelBytesPerUs = 3.4e6, kPlaneBytesPerUs = 3.0e6;

// Transposing, derived from the bandwidth. A byte that is still in L2 costs a share of one in
// memory. Planes whose rows are not aligned to 16 bytes are stored in partial sectors.
constexpr double kTransposeUs = 2.5, kTransposeBytesPerUs = 3.5e6;
constexpr double kNearByte = 0.4;

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

// The cost of a plane's bytes relative to those of planes with whole 16-byte units.
double find_unit_share(int64_t unit_bytes) {
  return unit_bytes >= 16 ? 1 : unit_bytes == 8 ? 1.1 : unit_bytes == 4 ? 1.3 : 2;
}

// True if the pixels of a plane are contiguous and channels are not.
bool has_dense_planes(const Strides& s, int64_t channels, int64_t h, int64_t w) {
  return channels > 1 && s.c != 1 && (w == 1 || s.w == 1) && (h == 1 || s.h == w);
}

int fit_plane_unit(const ConvProblem& p, const Strides& s, int64_t plane) {
  return fit_unit(size_of(p.dtype), plane, p.N > 1 ? s.n : 0, s.c);
}

class ChunkFitter {
 public:
  ChunkFitter(const ConvProblem& problem, const DeviceCaps& caps, PhasesForm form,
              const PhaseAxis& rows, const PhaseAxis& columns)
      : p_(problem),
        caps_(caps),
        rows_(rows),
        columns_(columns),
        transposes_(form == PhasesForm::kTransposed) {
    shape_.form = form;
    phases_ = rows.kept * columns.kept;
    group_filters_ = p_.channels_per_group() * phases_;
    // Single channels have their columns in a row even if they are channels_last.
    has_pixels_ = transposes_ || (p_.x_strides.c == 1 && p_.C > 1 && p_.x_strides.w != 1);
    const int64_t unit = transposes_ ? kTransposeBytes / size_of(p_.dtype) : 1;
    result_pixel_ = round_up(p_.C * phases_, unit);
    result_image_ = result_pixel_ * rows_.count * columns_.count;
    source_pixel_ = round_up(p_.K, unit);
    source_image_ = transposes_ ? source_pixel_ * p_.P * p_.Q : 0;
  }

  std::optional<PhasesShape> fit(int64_t chunk_bytes, double give_up_us) {
    const int64_t target_image = p_.C * p_.H * p_.W;
    const int64_t weights = p_.C * phases_ * rows_.taps * columns_.taps * p_.filters_per_group();
    const int64_t largest = std::max({target_image, result_image_, source_image_});
    if (std::max(largest, weights) >= kMostPhaseElements) return std::nullopt;
    const int64_t size = size_of(p_.dtype);
    shape_.filters_in_place = find_filters();
    if (!shape_.filters_in_place) shape_.filter_bytes = round_up(weights * size, kPhasesAlignment);
    const int64_t room = (caps_.workspace_limit - shape_.filter_bytes) / 2;
    const int64_t most =
        std::min({chunk_bytes / (result_image_ * size),
                  room / ((result_image_ + source_image_) * size), kMostPhaseElements / largest});
    if (most < 1) return std::nullopt;
    const int64_t chunks = ceil_div(p_.N, most);
    shape_.chunk_images = ceil_div(p_.N, chunks);
    shape_.source_bytes = round_up(shape_.chunk_images * source_image_ * size, kPhasesAlignment);
    shape_.result_bytes = round_up(shape_.chunk_images * result_image_ * size, kPhasesAlignment);
    set_pack();
    if (transposes_) {
      set_transposes();
    } else {
      set_interleave();
    }
    shape_.microseconds = predict_around(weights);
    if (!plan_chunks(give_up_us - shape_.microseconds)) return std::nullopt;
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
    inner.x_strides = transposes_ ? channels_last_strides(source_pixel_, p_.P, p_.Q) : p_.y_strides;
    inner.w_strides = inner_weights_;
    inner.y_strides = has_pixels_ ? channels_last_strides(result_pixel_, inner.P, inner.Q)
                                  : contiguous_strides(inner.K, inner.P, inner.Q);
    return inner;
  }

  // Adds the time of the chunks' convolutions. Returns false if one has no plan, or if all take
  // most_us or longer.
  bool plan_chunks(double most_us) {
    const int64_t before = shape_.filter_bytes + shape_.source_bytes + shape_.result_bytes;
    const int64_t left = caps_.workspace_limit - before;
    const auto chunks = static_cast<double>(p_.N / shape_.chunk_images);
    std::optional<InnerProblem> whole =
        plan_inner(make_inner(shape_.chunk_images), caps_, left, most_us / chunks);
    if (!whole) return false;
    shape_.whole = std::move(*whole);
    double inner_us = chunks * shape_.whole.plan.predicted_us;
    if (const int64_t images = p_.N % shape_.chunk_images; images > 0) {
      std::optional<InnerProblem> rest =
          plan_inner(make_inner(images), caps_, left, most_us - inner_us);
      if (!rest) return false;
      shape_.rest = std::move(*rest);
      inner_us += shape_.rest.plan.predicted_us;
    }
    shape_.microseconds += inner_us;
    shape_.workspace_bytes =
        before + std::max(shape_.whole.plan.workspace_bytes, shape_.rest.plan.workspace_bytes);
    return true;
  }

  void set_pack() {
    const auto pack_axis = [&](const PhaseAxis& axis, int64_t kernel) {
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
      to.result_group = narrow(group_filters_), to.result_c = 1;
      to.result_h = narrow(columns_.count * result_pixel_), to.result_w = narrow(result_pixel_);
      to.result_column_phase = narrow(channels);
      to.result_row_phase = narrow(columns_.kept * channels);
    } else {
      to.result_c = narrow(phases_ * plane);
      to.result_group = narrow(channels * phases_ * plane);
      to.result_h = narrow(columns_.count), to.result_w = 1;
      to.result_column_phase = narrow(plane);
      to.result_row_phase = narrow(columns_.kept * plane);
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

  // Everything but pointers and the number of images.
  void set_transposes() {
    const int64_t size = size_of(p_.dtype);
    shape_.to_pixels = {.element_bytes = size,
                        .channels = p_.K,
                        .pixel_bytes = source_pixel_ * size,
                        .rows = p_.P,
                        .columns = p_.Q,
                        .strides = p_.y_strides};
    TransposeParams& to = shape_.to_planes;
    const int64_t side = kTransposeBytes / size, plane = p_.H * p_.W;
    const int64_t channel_tiles = ceil_div(p_.C, side * kTransposeChannelLanes);
    const int64_t pixel_tiles = ceil_div(plane, side * kTransposePixelLanes);
    to.planes_n = p_.x_strides.n, to.planes_c = p_.x_strides.c;
    to.pixels_n = result_image_;
    to.pixels_h = narrow(columns_.count * result_pixel_), to.pixels_w = narrow(result_pixel_);
    to.column_phase = narrow(p_.C), to.row_phase = narrow(columns_.kept * p_.C);
    to.rows = place_phases(rows_), to.columns = place_phases(columns_);
    to.by_columns = FastDivmod(p_.W);
    to.channels = narrow(p_.C), to.plane = narrow(plane);
    to.unit = fit_plane_unit(p_, p_.x_strides, plane);
    to.image_tiles = narrow(channel_tiles * pixel_tiles);
    to.by_channel_tiles = FastDivmod(channel_tiles);
    to.by_pixel_tiles = FastDivmod(pixel_tiles);
  }

  // Microseconds of everything but the inner convolutions.
  double predict_around(int64_t weights) const {
    const DeviceRates rates = rates_of(caps_);
    const auto size = static_cast<double>(size_of(p_.dtype));
    const double packing = shape_.filters_in_place
                               ? 0
                               : predict_packing(static_cast<double>(weights) * size, rates.memory);
    const double around = transposes_ ? predict_transposes() : predict_interleave();
    const double images = static_cast<double>(p_.N) * size;
    const double launches = static_cast<double>(ceil_div(p_.N, shape_.chunk_images)) *
                            (transposes_ ? 2 * kTransposeUs : kInterleaveUs);
    return packing + images * around / rates.memory + launches;
  }

  // Microseconds per image and byte of an element, on an H200.
  double predict_interleave() const {
    // Results that are no longer in L2 have been written to memory and come back from there.
    const double far = 1 - find_near_share(static_cast<double>(shape_.result_bytes));
    const double elements =
        static_cast<double>(p_.C * p_.H * p_.W) + (1 + far) * static_cast<double>(result_image_);
    return elements / (has_pixels_ ? kPixelBytesPerUs : kPlaneBytesPerUs);
  }

  double predict_transposes() const {
    // The prediction of the inner convolution has the transfers between L2 and memory.
    const double near =
        find_near_share(static_cast<double>(shape_.source_bytes + shape_.result_bytes));
    const double pixel_share = near * kNearByte + (1 - near);
    const double written = find_unit_share(shape_.to_planes.unit * size_of(p_.dtype));
    return (static_cast<double>(p_.K * p_.P * p_.Q) +
            written * static_cast<double>(p_.C * p_.H * p_.W) +
            pixel_share * static_cast<double>(source_image_ + result_image_)) /
           kTransposeBytesPerUs;
  }

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  const PhaseAxis rows_, columns_;
  const bool transposes_;
  int64_t phases_, group_filters_;
  int64_t result_pixel_, result_image_;  // elements, with the padding of transposed pixels
  int64_t source_pixel_, source_image_;
  bool has_pixels_;
  Strides inner_weights_;
  PhasesShape shape_;
};

// True if phases can become the channels of transposed pixels: without inner taps of weight 0, and
// with phases that start at multiples of 16 bytes.
bool can_transpose_phases(const ConvProblem& p, const PhaseAxis& rows, const PhaseAxis& columns) {
  const bool aligned = p.C * size_of(p.dtype) % kTransposeBytes == 0;
  return rows.taps * columns.taps == 1 && (aligned || rows.kept * columns.kept == 1);
}

}  // namespace

std::optional<PhasesShape> fit_chunked_phases(const ConvProblem& p, const DeviceCaps& caps,
                                              PhasesForm form, double give_up_us) {
  const bool transposes = form == PhasesForm::kTransposed;
  if (transposes && (size_of(p.dtype) > 4 || !has_dense_planes(p.x_strides, p.C, p.H, p.W) ||
                     !has_dense_planes(p.y_strides, p.K, p.P, p.Q))) {
    return std::nullopt;
  }
  const std::optional<PhaseAxis> rows =
      fit_phase_axis(p.H, p.P, p.R, p.stride.h, p.pad.top, p.dilation.h);
  const std::optional<PhaseAxis> columns =
      fit_phase_axis(p.W, p.Q, p.S, p.stride.w, p.pad.left, p.dilation.w);
  if (!rows || !columns) return std::nullopt;
  if (transposes && !can_transpose_phases(p, *rows, *columns)) return std::nullopt;
  std::optional<PhasesShape> best;
  for (const int64_t chunk_bytes : kChunkBytes) {
    std::optional<PhasesShape> shape =
        ChunkFitter(p, caps, form, *rows, *columns).fit(chunk_bytes, give_up_us);
    if (shape && shape->microseconds < give_up_us) {
      give_up_us = shape->microseconds;
      best = std::move(shape);
    }
    if (best && best->chunk_images == p.N) break;
  }
  return best;
}

}  // namespace convx
