#include "engines/cuda/lines/window_shape.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "core/arithmetic.h"
#include "engines/cuda/lines/line_taps.h"
#include "engines/cuda/lines/window_parts.h"

namespace convx {
namespace {

constexpr int kBarrierBytes = 1024;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMaxSteps = 4;  // reduction steps of 32 bytes in a chunk
constexpr int kMaxFilterStages = 16;
constexpr int kMaxSourceStages = 3;
constexpr int kMaxTileSizes = 3 * 5 * 2;  // lane bytes, columns and filter groups
constexpr int64_t kFilterStageBytes = 18432;

std::span<const int> list_columns(TensorMath math) {
  return visit_math(
      math, []<TensorMath kMath>() -> std::span<const int> { return window_columns<kMath>(); });
}

enum class Cut { kStretch, kRows, kRowPairs };

// How the source gets into shared memory: as lines from the workspace (kLines), transposed from
// source rows in the kernel (kWalk, kCarry), or by TMA (kBoxes).
enum class Way { kLines, kWalk, kCarry, kBoxes };

// One way to cut the line into tiles. It may not fit in shared memory.
struct Candidate {
  Cut cut;
  int strips;
  int columns;
  int filter_groups;
  int lane_bytes;
  bool overlap = false;
  Way way = Way::kLines;
};

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math,
         const GatherAxis& rows, const GatherAxis& columns, double give_up_us)
      : problem_(problem),
        caps_(caps),
        costs_(make_phase_costs(problem, caps, math, rows, columns)),
        rows_(rows),
        columns_(columns),
        taps_on_line_(rows, columns),
        math_(math),
        least_us_(give_up_us) {
    const GatherTensors& view = costs_.tensors;
    sources_ = view.source_channels;
    targets_ = view.target_channels;
    source_h_ = view.source_h;
    source_w_ = view.source_w;
    taps_ = rows.taps * columns.taps;
    may_box_ = may_box_source(problem, math);
    may_walk_ = may_walk_source(problem, math);
    start();
  }

  WindowShape fit() {
    search();
    best_.depends_on_workspace = depends_on_workspace_;
    if (best_.columns == 0) return best_;
    best_.segments.resize(best_.segment_count);
    taps_on_line_.fill_segments(best_);
    taps_on_line_.fill_taps(best_);
    const int64_t tiles = best_.pixel_tiles * best_.filter_tiles * problem_.groups * best_.splits;
    best_.blocks = static_cast<int>(std::min<int64_t>(tiles, caps_.sm_count));
    return best_;
  }

  WindowFitness check() {
    stops_at_first_ = true;
    search();
    if (best_.columns > 0) return WindowFitness::kFits;
    return depends_on_workspace_ || needs_bands_ ? WindowFitness::kMayFitInBands
                                                 : WindowFitness::kNeverFits;
  }

 private:
  // Tiles of one size, in all ways to cut the line.
  struct TileSize {
    Candidate tile;
    int order;  // of equal predictions, the lowest wins
    double bound_us;
  };

  // The sizes with the smallest bounds come first, and end the search of the others.
  void search() {
    if (taps_ > kMaxWindowTaps) return;
    std::array<TileSize, kMaxTileSizes> sizes;
    int count = 0;
    for (const int lane_bytes : {32, 64, 128}) {
      for (const int columns : list_columns(math_)) {
        for (const int filter_groups : {1, 2}) {
          if (filter_groups == 2 && targets_ <= kWindowFilters) continue;
          if (!may_fit_line(lane_bytes)) continue;
          const double bound_us = bound_tile_us(costs_, math_, lane_bytes, columns, filter_groups);
          sizes[count] = {{Cut::kStretch, 1, columns, filter_groups, lane_bytes}, count, bound_us};
          ++count;
        }
      }
    }
    if (!stops_at_first_) {
      std::sort(sizes.begin(), sizes.begin() + count, [](const TileSize& a, const TileSize& b) {
        return a.bound_us != b.bound_us ? a.bound_us < b.bound_us : a.order < b.order;
      });
    }
    for (int i = 0; i < count && sizes[i].bound_us < least_us_; ++i) {
      if (stops_at_first_ && best_.columns > 0) return;
      order_ = sizes[i].order;
      consider_all(sizes[i].tile);
    }
  }

  // Returns false if the line of one image is certain not to fit in the workspace.
  bool may_fit_line(int lane_bytes) {
    if (!costs_.needs_lines) return true;
    const int64_t chunks = ceil_div(sources_ * operand_bytes(math_), lane_bytes);
    return has_room(rows_.count * columns_.count * problem_.groups * chunks * lane_bytes *
                    count_planes(math_));
  }

  // Considers every way to cut the line into tiles of the size that `tile` has.
  void consider_all(const Candidate& tile) {
    const auto cut = [&](Cut cut, int strips = 1, bool overlap = false, Way way = Way::kLines) {
      Candidate candidate = tile;
      candidate.cut = cut, candidate.strips = strips;
      candidate.overlap = overlap, candidate.way = way;
      consider(candidate);
    };
    const bool overlaps = columns_.count % 2 == 0;
    const bool walks =
        may_walk_ && tile.columns == kWalkColumns && tile.lane_bytes == kWalkLaneBytes;
    cut(Cut::kStretch);
    // Strips shorten the way from one row of taps to the next. Where pixels are stored one by one,
    // a single tap gains nothing.
    const bool may_gain = !costs_.stores_pixels || taps_ > 1;
    for (const int strip : {256, 128, 64, 32}) {
      if (!may_gain) break;
      const int strips = static_cast<int>(ceil_div(columns_.count, strip));
      if (strips > 1) cut(Cut::kStretch, strips);
    }
    cut(Cut::kRows);
    if (overlaps) {
      cut(Cut::kStretch, 1, true);
      cut(Cut::kRows, 1, true);
    }
    if (overlaps && walks) cut(Cut::kStretch, 1, true, Way::kWalk);
    if (walks && may_carry(math_)) cut(Cut::kStretch, 1, false, Way::kCarry);
    if (may_box_) {
      cut(Cut::kStretch, 1, false, Way::kBoxes);
      if (overlaps) cut(Cut::kStretch, 1, true, Way::kBoxes);
    }
    if (tile.filter_groups == 1) cut(Cut::kRowPairs);
    if (may_box_) cut(Cut::kRowPairs, 1, false, Way::kBoxes);
  }

  void consider(const Candidate& candidate) {
    WindowShape shape = lay_out(candidate);
    if (shape.segment_count == 0 || shape.chunks > kMaxTensorChunks) return;
    const bool by_boxes = candidate.way == Way::kBoxes;
    if (bound_microseconds(costs_, shape, by_boxes, 1) >= least_us_) return;
    if (by_boxes && !lay_out_boxes(problem_, shape)) return;
    for (int splits = 1; splits <= std::min(shape.chunks, kMaxWindowSplits); ++splits) {
      // Every further slice is written and read again.
      if (splits > 1 && bound_microseconds(costs_, shape, by_boxes, splits) >= least_us_) break;
      shape.splits = splits;
      shape.partial_bytes = splits == 1 ? 0 : splits * target_elements() * 4;
      if (!fit_memory(shape)) break;
      const bool whole = shape.resident || shape.images < problem_.N || candidate.overlap;
      if (splits > 1 && whole) break;
      shape.microseconds = predict_microseconds(costs_, shape);
      const bool is_tie = shape.microseconds == least_us_ && order_ < best_order_;
      if (shape.microseconds < least_us_ || is_tie) {
        best_ = shape, best_order_ = order_, least_us_ = shape.microseconds;
      }
      if (shape.pixel_tiles * shape.filter_tiles * problem_.groups >= 2 * caps_.sm_count) break;
    }
  }

  // Completes a shape whose line and tile are laid out; returns false if it does not fit.
  bool fit_memory(WindowShape& shape) {
    if (!shape.walks()) return fit_shared_memory(shape) && fit_lines(shape);
    const bool fits = fit_walk(problem_, caps_, shape);
    return has_room(shape.packed_bytes) && fits;
  }

  // Whether the workspace has so many bytes; remembers if it has not.
  bool has_room(int64_t bytes) {
    if (bytes <= caps_.workspace_limit) return true;
    depends_on_workspace_ = true;
    return false;
  }

  int64_t target_elements() const {
    return problem_.N * problem_.groups * targets_ * rows_.count * columns_.count;
  }

  // Sets what all candidates share.
  void start() {
    start_.math = math_;
    start_.rows_axis = rows_;
    start_.columns_axis = columns_;
    start_.channels = static_cast<int>(sources_);
    start_.rows = static_cast<int>(taps_on_line_.row_reach.shared_pitch(rows_, source_h_));
    start_.row_base = static_cast<int>(taps_on_line_.row_reach.first);
    start_.column_base = static_cast<int>(taps_on_line_.column_reach.first);
    start_.lines = static_cast<int>(taps_on_line_.row_reach.phases.size() *
                                    taps_on_line_.column_reach.phases.size());
    // The pitch of a line that is not cut into strips.
    start_.pitch = static_cast<int>(taps_on_line_.column_reach.shared_pitch(columns_, source_w_));
  }

  WindowShape lay_out(const Candidate& candidate) {
    WindowShape shape = start_;
    shape.columns = candidate.columns;
    shape.filter_groups = candidate.filter_groups;
    shape.lane_bytes = candidate.lane_bytes;
    shape.pace = candidate.way == Way::kWalk    ? Pace::kWalk
                 : candidate.way == Way::kCarry ? Pace::kCarry
                                                : Pace::kTiles;
    shape.chunk_channels = candidate.lane_bytes / operand_bytes(math_);
    shape.chunks = static_cast<int>(ceil_div(shape.channels, shape.chunk_channels));
    shape.filter_tiles =
        static_cast<int>(ceil_div(targets_, kWindowFilters * candidate.filter_groups));
    lay_out_line(shape, candidate);
    lay_out_tile(shape, candidate);
    return shape;
  }

  void lay_out_line(WindowShape& shape, const Candidate& candidate) const {
    shape.by_rows = candidate.cut != Cut::kStretch;
    shape.strips = candidate.strips;
    shape.strip_columns = static_cast<int>(ceil_div(columns_.count, candidate.strips));
    int64_t pitch = candidate.strips == 1 ? start_.pitch
                                          : shape.strip_columns + taps_on_line_.column_reach.span();
    // Segments start at rows, so rows start at multiples of kLineAlignment. With an even pitch,
    // pairs of pixels are pairs of positions, and are staged together.
    if (shape.by_rows) pitch = round_up(pitch, kLineAlignment);
    if (candidate.strips == 1 && columns_.count % 2 == 0) pitch = round_up(pitch, 2);
    shape.pitch = static_cast<int>(pitch);
  }

  // Leaves segment_count at 0 if there would be too many.
  void lay_out_tile(WindowShape& shape, const Candidate& candidate) {
    const int64_t column_phases = static_cast<int64_t>(taps_on_line_.column_reach.phases.size());
    const int64_t columns = shape.columns;
    // A copy of a line starts at a multiple of kLineAlignment, a box anywhere.
    const int64_t before = candidate.way == Way::kBoxes ? 0 : kLineAlignment - 1;
    const auto align = [&](int64_t length) { return round_up(length + before, kLineAlignment); };
    shape.window_step = shape.columns;
    if (candidate.overlap) {
      const int element = static_cast<int>(size_of(problem_.dtype));
      const int shared = shared_columns(element);
      if (columns_.count % 2 != 0 ||
          sector_positions(element, columns_.count, shape.pitch) > shared) {
        return;
      }
      shape.window_step -= shared;
    }
    int64_t cover = shape.window_step * (shape.windows() - 1) + columns;
    int64_t segments = shape.lines;
    const int64_t reach =
        cover + taps_on_line_.row_reach.span() * shape.pitch + taps_on_line_.column_reach.span();
    int64_t length = align(reach);
    shape.reach = static_cast<int>(std::min<int64_t>(reach, 1 << 30));
    shape.second_window = shape.windows() == 2 ? shape.window_step : 0;
    shape.second_offset = shape.second_window;
    if (shape.by_rows) {
      int64_t kernel_rows = rows_.taps;
      int64_t further = 0;  // kernel rows from the first window to the second
      if (candidate.cut == Cut::kRowPairs) {
        // The second window, if there is one, reads the same rows as the first one's taps, except
        // for the last few.
        int64_t step = 1;
        if (shape.windows() == 2) {
          step = rows_.offset_step / std::gcd(rows_.offset_step, rows_.source_step);
          further = step * rows_.source_step / rows_.offset_step;
        }
        const int64_t pair = shape.windows() * step;
        shape.pair_rows = static_cast<int>(step);
        shape.pairs_per_image = static_cast<int>(ceil_div(rows_.count, pair) * step);
        shape.column_windows = static_cast<int>(ceil_div(columns_.count, columns));
        shape.second_window = shape.windows() == 2 ? static_cast<int>(step * shape.pitch) : 0;
        shape.second_offset = 0;
        kernel_rows += further;
        cover = columns;
      }
      segments = kernel_rows * column_phases;
      length = align(cover + taps_on_line_.column_reach.span());
      if (further > 0) shape.second_offset = static_cast<int>(further * column_phases * length);
    }
    constexpr int64_t kMaxLine = int64_t{1} << 30;  // positions are 32-bit
    const int64_t line = problem_.N * shape.strips * shape.rows * shape.pitch;
    if (line > kMaxLine) needs_bands_ = true;
    if (segments > kMaxWindowSegments || length > (1 << 14) || line > kMaxLine) return;
    shape.segment_length = static_cast<int>(length);
    shape.segment_count = static_cast<int>(segments);
  }

  // Decides how many images' lines are in the workspace at a time.
  bool fit_lines(WindowShape& shape) {
    if (shape.box_columns > 0) {  // no lines in the workspace
      shape.images = static_cast<int>(problem_.N);
      shape.pixel_tiles = count_pixel_tiles(shape, shape.images);
      return has_room(shape.packed_bytes + shape.partial_bytes);
    }
    int64_t slack =
        taps_on_line_.find_last_shift(shape) + shape.segment_length + 2 * kLineAlignment;
    // Pairs of rows, and windows across a row, may start behind an image's last row.
    if (shape.pair_rows > 0) {
      slack += 2 * int64_t{shape.pair_rows} * shape.pitch + shape.column_windows * shape.columns;
    }
    const int64_t per_image = int64_t{shape.strips} * shape.rows * shape.pitch;
    const int64_t position_bytes =
        problem_.groups * shape.chunks * shape.planes() * shape.lines * shape.lane_bytes;
    const int64_t limit = caps_.workspace_limit - shape.packed_bytes - shape.partial_bytes;
    int64_t most = (limit / position_bytes - slack) / per_image;
    if (most < problem_.N) depends_on_workspace_ = true;
    most = std::min(most, problem_.N);
    if (most < 1 || problem_.groups * shape.chunks > kMaxTensorChunks) return false;
    shape.images = static_cast<int>(ceil_div(problem_.N, ceil_div(problem_.N, most)));
    shape.pixel_tiles = count_pixel_tiles(shape, shape.images);
    shape.line_positions = round_up(shape.images * per_image + slack, kLineAlignment);
    shape.line_bytes = shape.line_positions * position_bytes;
    return has_room(shape.packed_bytes + shape.line_bytes + shape.partial_bytes);
  }

  bool fit_shared_memory(WindowShape& shape) const {
    const int64_t plane = round_up(int64_t{shape.positions()} * shape.lane_bytes, kTileAlignment);
    shape.plane_bytes = static_cast<int>(plane);
    const int64_t stored = shape.splits > 1 ? 4 : size_of(problem_.dtype);
    shape.stores_boxes = shape.splits == 1 && can_store_boxes(problem_, shape);
    shape.source_offset = static_cast<int>(
        round_up(place_staging(shape, taps_, static_cast<int>(stored)), kTileAlignment));

    // Long filter stages are better, if three of them fit.
    const auto room = caps_.shared_bytes_per_block - shape.source_offset - kTileAlignment;
    return fit_stages(shape, room, kLongFilterStageBytes, 3) ||
           fit_stages(shape, room, kFilterStageBytes, 2);
  }

  // Places the source and filter rings: filter stages of up to most_bytes, at least `least` of
  // them.
  bool fit_stages(WindowShape& shape, int64_t room, int64_t most_bytes, int64_t least) const {
    const int64_t tap_bytes =
        int64_t{shape.filter_groups} * shape.planes() * kWindowFilters * shape.lane_bytes;
    const int64_t steps = taps_ * ceil_div(sources_ * operand_bytes(math_), 32);
    shape.chain_steps = find_chain_steps(steps);
    const int64_t stages_per_chunk =
        ceil_div(taps_, count_stage_taps(math_, shape.filter_groups, shape.lane_bytes,
                                         shape.chain_steps, most_bytes));
    const int64_t stage_taps = ceil_div(taps_, stages_per_chunk);
    shape.stage_taps = static_cast<int>(stage_taps);
    const int64_t stage_bytes = stage_taps * tap_bytes;
    const int64_t all_stages = stages_per_chunk * shape.chunks;

    const int64_t source_stage = int64_t{shape.plane_bytes} * shape.planes();
    int64_t source_stages = std::min<int64_t>(kMaxSourceStages, room / source_stage);
    while (source_stages > 2 && room - source_stages * source_stage < 3 * stage_bytes) {
      --source_stages;
    }
    if (source_stages < 2) return false;
    const int64_t filter_stages =
        std::min<int64_t>((room - source_stages * source_stage) / stage_bytes, kMaxFilterStages);
    const bool one_tile = shape.filter_tiles == 1 && problem_.groups == 1;
    // Filters stay resident if they fit beside two source stages: a third source stage is not worth
    // reading the filters again for every tile.
    const int64_t left = (room - 2 * source_stage) / stage_bytes;
    shape.resident = one_tile && all_stages <= std::min<int64_t>(left, kMaxFilterStages);
    if (shape.resident) {
      shape.filter_stages = static_cast<int>(all_stages);
      source_stages =
          std::min<int64_t>(kMaxSourceStages, (room - all_stages * stage_bytes) / source_stage);
    } else {
      if (filter_stages < least) return false;
      shape.filter_stages = static_cast<int>(filter_stages);
    }
    shape.source_stages = static_cast<int>(source_stages);
    shape.filter_offset = static_cast<int>(shape.source_offset + source_stages * source_stage);
    shape.shared_bytes =
        static_cast<int>(shape.filter_offset + shape.filter_stages * stage_bytes + kTileAlignment);
    shape.packed_bytes = problem_.groups * shape.filter_tiles * shape.chunks * taps_ * tap_bytes;
    return shape.shared_bytes <= caps_.shared_bytes_per_block;
  }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const PhaseCosts costs_;
  const GatherAxis rows_, columns_;
  const LineTaps taps_on_line_;
  const TensorMath math_;
  int64_t sources_ = 0, targets_ = 0, source_h_ = 0, source_w_ = 0, taps_ = 0;

  bool may_box_ = false, may_walk_ = false;

  WindowShape start_;  // what all candidates share
  WindowShape best_;
  double least_us_;                 // a shape must be faster than this
  int order_ = 0, best_order_ = 0;  // see TileSize
  bool needs_bands_ = false;        // some line has too many positions
  bool depends_on_workspace_ = false, stops_at_first_ = false;
};

}  // namespace

WindowShape fit_window_shape(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math,
                             const GatherAxis& rows, const GatherAxis& columns, double give_up_us) {
  return Fitter(problem, caps, math, rows, columns, give_up_us).fit();
}

WindowFitness check_window_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                 TensorMath math, const GatherAxis& rows,
                                 const GatherAxis& columns) {
  return Fitter(problem, caps, math, rows, columns, kNever).check();
}

int place_staging(WindowShape& shape, int64_t taps, int stored_bytes) {
  shape.table_offset = kBarrierBytes;
  const int64_t alignment = shape.stores_boxes ? kTileAlignment : 128;
  // With a single tap, the table has an entry for each of its steps.
  const int64_t entries = std::max<int64_t>(taps, kMaxSteps);
  shape.staging_offset = static_cast<int>(round_up(kBarrierBytes + entries * 4, alignment));
  return shape.staging_offset + staging_bytes(shape.columns, stored_bytes, shape.pace);
}

int64_t count_pixel_tiles(const WindowShape& shape, int64_t images) {
  if (shape.pair_rows > 0) return images * shape.pairs_per_image * shape.column_windows;
  const int64_t line = images * shape.strips * shape.rows * shape.pitch;
  return ceil_div(line, int64_t{shape.tile_step()});
}

}  // namespace convx
