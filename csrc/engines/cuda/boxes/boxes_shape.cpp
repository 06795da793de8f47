#include "engines/cuda/boxes/boxes_shape.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "planning/boxed_tensor.h"
#include "planning/dense_pixels.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

constexpr int64_t kManyTiles = 32;  // tiles per block from which the atomic counter pays off
constexpr int64_t kSumsAlignment = 256;
constexpr int64_t kFewestPartSteps = 2;  // steps of a split-K slice
// Split-K slices per multiprocessor. Four quarters of 98 tiles are three waves on 132
// multiprocessors, three quarters of one wave of whole tiles.
constexpr int64_t kMostPartWaves = 4;
// With more waves of whole tiles, an incomplete last wave does not matter.
constexpr int64_t kMostWholeWaves = 32;
constexpr int64_t kReservedBytes = 1024;  // per block, reserved by CUDA

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, const std::vector<BoxPhase>& phases,
         const BoxesWish& wish)
      : problem_(problem), caps_(caps), wish_(wish), view_(make_gather_tensors(problem)) {
    shape_.math = tensor_math(problem);
    shape_.phases = phases;
    shape_.chunks = static_cast<int>(ceil_div(view_.source_channels, box_chunk(shape_.math)));
    // The form of a problem with a single pixel may not be recognized: its pixel pitch may be lost,
    // and has no meaning there.
    shape_.form = find_box_form(problem).value_or(BoxForm::kPixels);
    shape_.boxed_target =
        shape_.form == BoxForm::kPixels
            ? has_boxes(view_.target_strides, view_.target_channels, size_of(problem.dtype))
            : shape_.form != BoxForm::kSpans;
    sizes_ = visit_math(shape_.math, [&]<TensorMath kMath>() {
      return visit_box_form<kMath>(shape_.form, []<BoxForm kForm>() {
        return std::span<const BoxTileSize>(box_tiles<kMath, kForm>());
      });
    });
    if (shape_.form == BoxForm::kPixels) choose_box();
    const bool is_flat = shape_.flat_pitch > 0;
    const bool one_row = is_flat || (problem.N == 1 && std::all_of(phases.begin(), phases.end(),
                                                                   [](const BoxPhase& phase) {
                                                                     return phase.rows.count == 1;
                                                                   }));
    // The phases of a launch have the same steps.
    const int64_t pixel_pitch =
        is_flat ? shape_.flat_pitch : phases[0].columns.target_step * view_.target_strides.w;
    if (one_row) {
      const int64_t size = size_of(problem.dtype);
      shape_.row_piece = std::min(fit_unit(size, pixel_pitch, view_.target_channels),
                                  kBoxPieceBytes / static_cast<int>(size));
    }
    shape_.dense_target = shape_.form == BoxForm::kPixels && !shape_.boxed_target && !is_tf32() &&
                          one_row && pixel_pitch == view_.target_channels &&
                          view_.target_channels <= box_chunk(shape_.math);
    find_filters();
  }

  BoxesShape fit() {
    BoxesShape best;
    if (wish_.flat > 0 && shape_.flat_pitch == 0) return best;
    BoxesShape shape = shape_;  // every candidate in its turn, so that phases are copied once
    for (int pieces = 1; pieces <= kMostBoxPieces; ++pieces) {
      // Two boxes of a tile have no fast stores but TMA's. Their stores also come in larger bursts,
      // which costs 1x1 layers that write more than they read up to 9%.
      const bool stores_limit = shape_.taps() == 1 && view_.target_channels > view_.source_channels;
      const bool is_slow =
          has_own_pieces(shape_.form, pieces) && (!shape_.boxed_target || stores_limit);
      if (wish_.pieces > 0 ? pieces != wish_.pieces : is_slow) continue;
      shape.pieces = pieces;
      if (find_tiles(shape)) take_best(shape, best);
    }
    return best;
  }

 private:
  // Keeps in `best` the best shape among all numbers of filters, with or without split-K.
  void take_best(BoxesShape& shape, BoxesShape& best) const {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i].pieces != shape.pieces) continue;
      const int filters = sizes_[i].filters;
      const bool has_smaller = i + 1 < sizes_.size() && sizes_[i + 1].pieces == shape.pieces;
      const bool too_many = has_smaller && sizes_[i + 1].filters >= view_.target_channels;
      if (wish_.filters > 0 ? filters != wish_.filters : too_many) continue;
      shape.filters = filters;
      shape.filter_tiles = ceil_div(view_.target_channels, filters);
      shape.parts = 1, shape.whole_tiles = shape.sums_offset = 0;
      shape.workspace_bytes = shape_.workspace_bytes;
      for (const bool resident : {true, false}) {
        if (wish_.resident >= 0 && resident != (wish_.resident > 0)) continue;
        shape.resident = resident;
        if (wish_.parts < 2) take_better(shape, best);
      }
      if (wish_.resident > 0 || wish_.in_turn > 0) continue;
      shape.resident = false;
      for (const int parts : {2, 3, 4, 5, 6, 8, 12}) {
        if (wish_.parts > 0 && parts != wish_.parts) continue;
        for (const bool whole_waves : {false, true}) {
          if (cut_reduction(shape, parts, whole_waves)) take_better(shape, best);
        }
      }
    }
  }

  // Replaces `best` if this shape is faster, with the best number of blocks per multiprocessor.
  void take_better(BoxesShape& shape, BoxesShape& best) const {
    for (int blocks = most_boxes_per_sm(shape.filters, shape.pieces); blocks > 0; --blocks) {
      if (!place_in_shared_memory(shape, blocks)) continue;
      find_grid(shape, blocks);
      // All four producer warps of spans would have to know the result of the atomic counter.
      const bool can_turn = shape.form != BoxForm::kSpans && shape.parts == 1;
      shape.in_turn = can_turn && (wish_.in_turn >= 0 ? wish_.in_turn > 0
                                                      : shape.tiles() >= kManyTiles * shape.grid);
      shape.microseconds = predict_boxes(problem_, view_, caps_, shape, blocks);
      if (best.filters == 0 || shape.microseconds < best.microseconds) best = shape;
    }
  }

  // Splits the reduction; with whole_waves only that of tiles that do not fill the last wave.
  // Returns false if slices would be too short or too many, or if there are no whole waves.
  bool cut_reduction(BoxesShape& shape, int parts, bool whole_waves) const {
    if (shape.filters > most_split_filters(shape.form) || shape.phases.size() > 1 ||
        shape.steps() < kFewestPartSteps * parts) {
      return false;
    }
    const int64_t sms = std::max(1, caps_.sm_count);
    const int64_t wave = sms * most_boxes_per_sm(shape.filters, shape.pieces);
    shape.whole_tiles = whole_waves ? shape.tiles() / wave * wave : 0;
    if (whole_waves && (shape.whole_tiles == 0 || shape.whole_tiles >= kMostWholeWaves * wave)) {
      return false;
    }
    shape.parts = parts;
    if (shape.split_tiles() == 0 || shape.split_tiles() * parts > kMostPartWaves * sms)
      return false;
    // Drops empty slices.
    shape.parts = static_cast<int>(ceil_div(shape.steps(), shape.part_steps()));
    shape.sums_offset = round_up(shape_.workspace_bytes, kSumsAlignment);
    shape.workspace_bytes =
        shape.sums_offset + shape.split_tiles() * shape.parts * shape.sums_bytes();
    return shape.workspace_bytes <= caps_.workspace_limit;
  }

  void find_filters() {
    const int64_t unit = 16 / size_of(problem_.dtype);
    // An expanded weight has a stride of 0, which a tensor map cannot have.
    const auto lies_well = [&](int64_t count, int64_t stride) {
      return count == 1 || (stride > 0 && stride % unit == 0);
    };
    if (lies_well(problem_.R, problem_.w_strides.h) &&
        lies_well(problem_.S, problem_.w_strides.w)) {
      if (view_.weight_source_stride == 1 &&
          lies_well(view_.target_channels, view_.weight_target_stride)) {
        shape_.filter_order = BoxFilters::kInPlace;
      } else if (takes_filter_columns(shape_.math) && view_.weight_target_stride == 1 &&
                 lies_well(view_.source_channels, view_.weight_source_stride)) {
        shape_.filter_order = BoxFilters::kColumns;
      }
    }
    shape_.packed_channels = round_up(view_.source_channels, unit);
    // Space is reserved even if the filters may be used in place: that depends on their address.
    shape_.packed_bytes = view_.target_channels * problem_.R * problem_.S * shape_.packed_channels *
                          size_of(problem_.dtype);
    constexpr auto kCountBytes = static_cast<int64_t>(sizeof(int));
    shape_.taken_offset = round_up(shape_.packed_bytes, kCountBytes);
    shape_.workspace_bytes =
        shape_.taken_offset + kCountBytes * ceil_div(view_.target_channels, kBoxFilters);
  }

  // Returns false if no image fits in the shape's pieces, or if fewer pieces are enough.
  bool find_tiles(BoxesShape& shape) const {
    if (has_whole_planes(shape.form)) return gather_images(shape);
    shape.staging_bytes = kBoxPixels * kBoxLineBytes;
    shape.pixel_bytes = shape.tile_boxes() * shape.staging_bytes;
    if (shape.form == BoxForm::kSpans) {
      cut_spans(shape);
    } else if (shape.form == BoxForm::kLines) {
      cut_lines(shape);
    }
    return true;
  }

  // channels_last: picks the box with the least work, and the widest of those, or flat tiles if
  // they are less work. Work is the number of tiles, each counted once for every tap and once for
  // its epilogue.
  void choose_box() {
    const int64_t work = find_best_box();
    const int64_t pitch = wish_.flat == 0 ? 0 : find_flat_pitch();
    BoxPhase& first = shape_.phases[0];
    const int64_t pixels = problem_.N * first.pixels();
    const int64_t flat_tiles = ceil_div(pixels, int64_t{kBoxPixels});
    if (pitch > 0 && (wish_.flat > 0 || flat_tiles * (first.taps() + 1) < work)) {
      shape_.flat_pitch = pitch;
      shape_.box = {static_cast<int>(std::min<int64_t>(pixels, kBoxPixels)), 1, 1};
      first.column_tiles = flat_tiles, first.row_tiles = 1;
      return;
    }
    shape_.image_tiles = ceil_div(problem_.N, shape_.box.images);
    for (BoxPhase& phase : shape_.phases) {
      phase.column_tiles = ceil_div(phase.columns.count, shape_.box.columns);
      phase.row_tiles = ceil_div(phase.rows.count, shape_.box.rows);
    }
  }

  // The pitch of the target's pixels if tiles can be flat, or else 0. All pixels of a tile belong
  // to one phase, and TMA must be able to read their source pixels in im2col mode.
  int64_t find_flat_pitch() const {
    if (shape_.phases.size() > 1) return 0;
    const auto can_walk = [](const GatherAxis& axis, int64_t extent) {
      return (axis.taps - 1) * axis.offset_step <= kMaxPixelOffset &&
             fits_pixel_corners(axis.offset0, axis.count, axis.source_step, extent);
    };
    const auto& [rows, columns] = static_cast<const GatherPhase&>(shape_.phases[0]);
    if (!can_walk(rows, view_.source_h) || !can_walk(columns, view_.source_w)) return 0;
    Strides strides = view_.target_strides;
    strides.h *= rows.target_step, strides.w *= columns.target_step;
    return find_pixel_pitch(strides, {problem_.N, rows.count, columns.count},
                            view_.target_channels);
  }

  // Sets shape_.box, and returns its work.
  int64_t find_best_box() {
    int64_t columns = 0, rows = 0;  // of the largest phase
    for (const BoxPhase& phase : shape_.phases) {
      columns = std::max(columns, phase.columns.count), rows = std::max(rows, phase.rows.count);
    }
    const auto most = [](int64_t count, int64_t room, int64_t step) {
      return std::min({count, room, (kMaxBoxSpan - 1) / step + 1});
    };
    const GatherPhase& first = shape_.phases[0];
    int64_t least = 0;
    // The work of boxes that are wide, if nothing else was cut, in 128ths.
    const auto bound = [&](int64_t wide) {
      int64_t work = 0;
      for (const BoxPhase& phase : shape_.phases) {
        work += ceil_div(phase.columns.count, wide) * phase.rows.count * (phase.taps() + 1);
      }
      return work * wide * problem_.N;
    };
    for (int64_t wide = most(columns, kBoxPixels, first.columns.source_step); wide > 0; --wide) {
      if (least > 0 && bound(wide) >= least * kBoxPixels) continue;
      for (int64_t high = most(rows, kBoxPixels / wide, first.rows.source_step); high > 0; --high) {
        const int64_t deep = std::min(problem_.N, kBoxPixels / (wide * high));
        int64_t work = 0;
        for (const BoxPhase& phase : shape_.phases) {
          work += ceil_div(phase.columns.count, wide) * ceil_div(phase.rows.count, high) *
                  ceil_div(problem_.N, deep) * (phase.taps() + 1);
        }
        if (least > 0 && work >= least) continue;
        least = work;
        shape_.box = {static_cast<int>(wide), static_cast<int>(high), static_cast<int>(deep)};
      }
    }
    return least;
  }

  void cut_lines(BoxesShape& shape) const {
    const int64_t lines = problem_.N * ceil_div(shape_.plane_pixels(), line_pixels(shape.math));
    shape.box = {kBoxPixels, 1, 1};
    shape.phases[0].column_tiles = ceil_div(lines, tile_lines(shape.math));
  }

  void cut_spans(BoxesShape& shape) const {
    shape.box = {kBoxPixels, 1, 1};
    shape.phases[0].column_tiles = ceil_div(shape.plane_pixels(), kBoxPixels);
    shape.image_tiles = problem_.N;
    // A stage. An epilogue buffer has as many filters as a stage has channels, with a smaller
    // pitch.
    const int bytes = box_chunk(shape.math) * span_pitch(shape.math);
    shape.pixel_bytes = shape.staging_bytes = static_cast<int>(round_up(bytes, kBoxAlignment));
  }

  bool gather_images(BoxesShape& shape) const {
    const int64_t plane = shape_.plane_pixels();
    const int64_t images = std::min(problem_.N, shape.pieces * kBoxPixels / plane);
    const bool has_fewer = shape.pieces > sizes_.front().pieces;
    if (images == 0 || (has_fewer && images * plane <= (shape.pieces - 1) * kBoxPixels)) {
      return false;
    }
    shape.box = {static_cast<int>(plane), 1, static_cast<int>(images)};
    shape.image_tiles = ceil_div(problem_.N, images);
    shape.pixel_bytes = static_cast<int>(round_up(images * plane * kBoxLineBytes, kBoxAlignment));
    shape.staging_bytes = shape.pixel_bytes;
    return true;
  }

  // Lays out shared memory for `blocks` blocks per multiprocessor. Returns false if fewer than two
  // stages fit.
  bool place_in_shared_memory(BoxesShape& shape, int blocks) const {
    const int64_t all = (caps_.shared_bytes_per_block + kReservedBytes) / blocks - kReservedBytes;
    const int64_t filter_bytes = int64_t{shape.filters} * kBoxLineBytes;
    const int64_t resident = shape.resident ? shape_.taps() * shape.chunks * filter_bytes : 0;
    const int64_t offset = kBoxBarrierBytes + kBoxBiasBytes + 2 * shape.staging_bytes;
    const int64_t stage_bytes = shape.pixel_bytes + (shape.resident ? 0 : filter_bytes);
    const int64_t room = all - kBoxAlignment - offset - resident;
    // Two stages do not hide the latency of memory from blocks that share a multiprocessor: kb87pw
    // in TF32, NCHW, input gradient, takes 3,792 us with two and 3,193 us with three (2026-11-18).
    if (room < (blocks > 1 ? 3 : 2) * stage_bytes) return false;
    shape.filters_offset = static_cast<int>(offset);
    shape.ring_offset = static_cast<int>(offset + resident);
    shape.stage_bytes = static_cast<int>(stage_bytes);
    shape.stages = static_cast<int>(std::min<int64_t>(room / stage_bytes, kMaxBoxStages));
    shape.shared_bytes =
        static_cast<int>(kBoxAlignment + shape.ring_offset + shape.stages * stage_bytes);
    return true;
  }

  // With resident filters the grid is a multiple of the filter tiles, so a block's tiles all have
  // the same filters.
  void find_grid(BoxesShape& shape, int blocks) const {
    const int64_t slots = int64_t{std::max(1, caps_.sm_count)} * blocks;
    const int64_t pixel_tiles = shape.tiles() / shape.filter_tiles;
    const int64_t grid =
        shape.resident
            ? shape.filter_tiles * std::clamp<int64_t>(slots / shape.filter_tiles, 1, pixel_tiles)
            : std::min(slots, shape.items());
    shape.grid = static_cast<int>(grid);
  }

  bool is_tf32() const { return shape_.math == TensorMath::kTf32; }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const BoxesWish& wish_;
  const GatherTensors view_;
  BoxesShape shape_;  // the fields that all candidates share
  std::span<const BoxTileSize> sizes_;
};

// True if TMA can read and store 128-byte lines of the planes.
bool has_lines(const ConvProblem& p) {
  const int64_t unit = 16 / size_of(p.dtype), plane = p.H * p.W;
  const auto lies_well = [&](const Strides& s) {
    return has_plane_units(s, p.H, p.W, unit) && s.c >= plane && s.n >= s.c;
  };
  return is_one_to_one(p) && lies_well(p.x_strides) && lies_well(p.y_strides);
}

// True if all planes of an image are contiguous, and those of a chunk of channels are whole 16-byte
// units. The stride of an axis with one element is ignored.
bool has_images(const ConvProblem& p) {
  const int64_t unit = 16 / size_of(p.dtype), plane = p.H * p.W;
  const auto lies_well = [&](const Strides& s, int64_t channels) {
    return channels % unit == 0 && (p.W == 1 || s.w == 1) && (p.H == 1 || s.h == p.W) &&
           s.c == plane && (p.N == 1 || (s.n % unit == 0 && s.n >= channels * plane));
  };
  return is_one_to_one(p) && plane <= kMostBoxPieces * kBoxPixels && lies_well(p.x_strides, p.C) &&
         lies_well(p.y_strides, p.K);
}

// True if the pixels of a plane are contiguous and planes do not overlap.
bool has_spans(const ConvProblem& p) {
  const auto lies_well = [&](const Strides& s, int64_t channels) {
    return (p.W == 1 || s.w == 1) && (p.H == 1 || s.h == p.W) &&
           (channels == 1 || s.c >= p.H * p.W);
  };
  return is_one_to_one(p) && lies_well(p.x_strides, p.C) && lies_well(p.y_strides, p.K);
}

}  // namespace

std::optional<BoxForm> find_box_form(const ConvProblem& p) {
  const int64_t bytes = size_of(p.dtype);
  const GatherTensors view = make_gather_tensors(p);
  if (has_boxes(view.source_strides, view.source_channels, bytes) &&
      (view.target_channels == 1 || view.target_strides.c == 1)) {
    return BoxForm::kPixels;
  }
  if (has_lines(p)) return BoxForm::kLines;
  if (has_images(p)) {
    return bytes == 2 && p.H * p.W % 2 == 0 ? BoxForm::kPairs : BoxForm::kImages;
  }
  if (has_spans(p)) return BoxForm::kSpans;
  return std::nullopt;
}

std::vector<std::vector<BoxPhase>> find_box_phases(const ConvProblem& problem) {
  std::vector<GatherPhase> phases = make_gather_phases(problem);
  std::stable_sort(phases.begin(), phases.end(),
                   [](const GatherPhase& a, const GatherPhase& b) { return a.taps() > b.taps(); });
  std::vector<std::vector<BoxPhase>> launches;
  for (const GatherPhase& phase : phases) {
    if (launches.empty() || launches.back().size() == kMaxBoxPhases) launches.emplace_back();
    launches.back().push_back({phase});
  }
  return launches;
}

BoxesShape fit_boxes_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const std::vector<BoxPhase>& phases, const BoxesWish& wish) {
  return Fitter(problem, caps, phases, wish).fit();
}

}  // namespace convx
