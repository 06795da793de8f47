#include "engines/cuda/lines/window_shape.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/arithmetic.h"
#include "engines/cuda/lines/line_taps.h"
#include "engines/cuda/lines/window_parts.h"

namespace convx {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMaxTileSizes = 3 * 5 * 2;  // lane bytes, columns and filter groups
constexpr int kMaxCuts = 16;              // ways to cut the line into tiles of one size

enum class Cut { kStretch, kRows, kRowPairs };

// How the source gets into shared memory: as lines from the workspace (kLines), transposed from
// source rows in the kernel (kStream, kCarry), or by TMA (kBoxes).
enum class Way { kLines, kStream, kCarry, kBoxes };

// One way to cut the line into tiles. It may not fit in shared memory.
struct Candidate {
  Cut cut;
  int strips;
  int columns;
  int filter_groups;
  int lane_bytes;
  bool overlap;
  Way way;
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
    may_stream_ = may_stream_source(problem, math);
    if (problem.dtype == DType::kFloat32) {
      scale_bytes_ = HalfScales::bytes(problem.groups * targets_);
    }
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
    return lacks_workspace_ || needs_bands_ ? WindowFitness::kMayFitInBands
                                            : WindowFitness::kNeverFits;
  }

 private:
  // Tiles of one size, in all ways to cut the line.
  struct TileSize {
    TileCosts costs;
    int order;
    double bound_us;
  };
  // A candidate that has not been considered yet.
  struct Open {
    Candidate candidate;
    const TileCosts* costs;  // of its size
    int order;               // of equal predictions, the lowest wins
    double bound_us;

    bool operator<(const Open& other) const { return bound_us > other.bound_us; }  // for a heap
  };

  // What has the smallest bound comes next, be it a size, which is cut in all ways, or a candidate.
  // So nothing is laid out or considered whose bound is above the best prediction.
  void search() {
    if (taps_ > kMaxWindowTaps) return;
    std::vector<TileSize> sizes;
    sizes.reserve(kMaxTileSizes);
    for (const int lane_bytes : {32, 64, 128}) {
      if (!may_fit_line(lane_bytes)) continue;
      for (const int columns : list_columns(math_)) {
        for (const int filter_groups : {1, 2}) {
          if (filter_groups == 2 && targets_ <= kWindowFilters) continue;
          const TileCosts tile = make_tile_costs(costs_, math_, lane_bytes, columns, filter_groups);
          const double bound_us = stops_at_first_ ? 0 : bound_tile_us(costs_, tile);
          sizes.push_back({tile, static_cast<int>(sizes.size()), bound_us});
        }
      }
    }
    std::array<const TileSize*, kMaxTileSizes> sorted;
    const auto end = std::transform(sizes.begin(), sizes.end(), sorted.begin(),
                                    [](const TileSize& size) { return &size; });
    std::sort(sorted.begin(), end, [](const TileSize* a, const TileSize* b) {
      return a->bound_us != b->bound_us ? a->bound_us < b->bound_us : a->order < b->order;
    });
    for (auto next = sorted.begin(); next != end; ++next) {
      consider_open((*next)->bound_us);
      if ((*next)->bound_us >= least_us_ || is_done()) break;
      open_cuts(**next);
    }
    consider_open(kNever);
  }

  // Considers open candidates up to this bound.
  void consider_open(double most_us) {
    while (!open_.empty() && open_.front().bound_us < std::min(most_us, least_us_)) {
      std::pop_heap(open_.begin(), open_.end());
      const Open next = open_.back();
      open_.pop_back();
      consider(next);
    }
  }

  bool is_done() const { return stops_at_first_ && best_.columns > 0; }

  // Returns false if the line of one image is certain not to fit in the workspace.
  bool may_fit_line(int lane_bytes) {
    if (!costs_.needs_lines) return true;
    const int64_t chunks = ceil_div(sources_ * operand_bytes(math_), lane_bytes);
    return has_room(rows_.count * columns_.count * problem_.groups * chunks * lane_bytes *
                    count_planes(math_));
  }

  // Lays out every way to cut the line into tiles of this size, and keeps those that may be best.
  void open_cuts(const TileSize& size) {
    const TileCosts& tile = size.costs;
    int order = size.order * kMaxCuts;
    laid_out_ = start_size(tile);
    if (laid_out_.chunks > kMaxTensorChunks) return;
    const auto cut = [&](Cut cut, int strips = 1, bool overlap = false, Way way = Way::kLines) {
      const Candidate candidate{cut,     strips, tile.columns, tile.filter_groups, tile.lane_bytes,
                                overlap, way};
      open(candidate, tile, order++);
    };
    const bool overlaps = columns_.count % 2 == 0;
    const bool streams =
        may_stream_ && tile.columns == kStreamColumns && tile.lane_bytes == kStreamLaneBytes;
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
    if (overlaps && streams) cut(Cut::kStretch, 1, true, Way::kStream);
    if (streams && may_carry(math_)) cut(Cut::kStretch, 1, false, Way::kCarry);
    if (may_box_) {
      cut(Cut::kStretch, 1, false, Way::kBoxes);
      if (overlaps) cut(Cut::kStretch, 1, true, Way::kBoxes);
    }
    if (tile.filter_groups == 1) cut(Cut::kRowPairs);
    if (may_box_) cut(Cut::kRowPairs, 1, false, Way::kBoxes);
  }

  void open(const Candidate& candidate, const TileCosts& tile, int order) {
    if (is_done()) return;
    lay_out(laid_out_, candidate);
    if (laid_out_.segment_count == 0) return;
    Open next{candidate, &tile, order, 0};
    if (stops_at_first_) return consider(next);
    laid_out_.images =
        static_cast<int>(candidate.way == Way::kLines ? count_images(laid_out_) : problem_.N);
    if (laid_out_.images < 1 && problem_.N > 0) return;
    next.bound_us = bound_microseconds(costs_, tile, laid_out_, candidate.way == Way::kBoxes, 1);
    if (next.bound_us >= least_us_) return;
    open_.push_back(next);
    std::push_heap(open_.begin(), open_.end());
  }

  void consider(const Open& next) {
    WindowShape shape = start_size(*next.costs);
    lay_out(shape, next.candidate);
    const bool by_boxes = next.candidate.way == Way::kBoxes;
    if (by_boxes && !lay_out_boxes(problem_, shape)) return;
    shape.images = static_cast<int>(problem_.N);
    for (int splits = 1; splits <= std::min(shape.chunks, kMaxWindowSplits); ++splits) {
      // Every further slice is written and read again.
      if (splits > 1 &&
          bound_microseconds(costs_, *next.costs, shape, by_boxes, splits) >= least_us_) {
        break;
      }
      shape.splits = splits;
      shape.partial_bytes = splits == 1 ? 0 : splits * target_elements() * 4;
      if (!fit_memory(shape)) break;
      const bool whole = shape.resident || shape.images < problem_.N || next.candidate.overlap;
      if (splits > 1 && whole) break;
      shape.microseconds = predict_microseconds(costs_, shape);
      const bool is_tie = shape.microseconds == least_us_ && next.order < best_order_;
      if (shape.microseconds < least_us_ || is_tie) {
        best_ = shape, best_order_ = next.order, least_us_ = shape.microseconds;
      }
      if (shape.pixel_tiles * shape.filter_tiles * problem_.groups >= 2 * caps_.sm_count) break;
    }
  }

  // Completes a shape whose line and tile are laid out; returns false if it does not fit.
  bool fit_memory(WindowShape& shape) {
    if (!shape.streams()) return fit_stages(problem_, caps_, taps_, shape) && fit_lines(shape);
    const bool fits = fit_stream(problem_, caps_, shape);
    return has_room(shape.packed_bytes) && fits;
  }

  // Whether the workspace has so many bytes; remembers if it has not.
  bool has_room(int64_t bytes) {
    if (bytes <= caps_.workspace_limit) return true;
    lacks_workspace_ = true;
    if (bytes <= caps_.workspace_limit + scale_bytes_) depends_on_workspace_ = true;
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

  // Sets what all candidates with tiles of this size share.
  WindowShape start_size(const TileCosts& tile) const {
    WindowShape shape = start_;
    shape.columns = tile.columns;
    shape.filter_groups = tile.filter_groups;
    shape.lane_bytes = tile.lane_bytes;
    shape.chunk_channels = tile.lane_bytes / operand_bytes(math_);
    shape.chunks = narrow(tile.chunks);
    shape.filter_tiles = narrow(ceil_div(targets_, kWindowFilters * tile.filter_groups));
    shape.packed_bytes =
        problem_.groups * shape.filter_tiles * shape.chunks * taps_ * window_tap_bytes(shape);
    return shape;
  }

  // Sets what depends on the candidate. Leaves segment_count at 0 if there would be too many.
  void lay_out(WindowShape& shape, const Candidate& candidate) {
    shape.pace = candidate.way == Way::kStream  ? Pace::kStream
                 : candidate.way == Way::kCarry ? Pace::kCarry
                                                : Pace::kTiles;
    lay_out_line(shape, candidate);
    lay_out_tile(shape, candidate);
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

  void lay_out_tile(WindowShape& shape, const Candidate& candidate) {
    shape.segment_count = 0;
    shape.pair_rows = 0, shape.pairs_per_image = shape.column_windows = 1;
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
    shape.images = static_cast<int>(count_images(shape));
    if (shape.images < problem_.N) lacks_workspace_ = true;
    if (shape.images < 1 || problem_.groups * shape.chunks > kMaxTensorChunks) return false;
    shape.pixel_tiles = count_pixel_tiles(shape, shape.images);
    shape.line_positions =
        round_up(shape.images * image_positions(shape) + count_slack(shape), kLineAlignment);
    shape.line_bytes = shape.line_positions * position_bytes(shape);
    return has_room(shape.packed_bytes + shape.line_bytes + shape.partial_bytes);
  }

  static int64_t image_positions(const WindowShape& shape) {
    return int64_t{shape.strips} * shape.rows * shape.pitch;
  }

  // Bytes of a position of the line in the workspace.
  int64_t position_bytes(const WindowShape& shape) const {
    return problem_.groups * shape.chunks * shape.planes() * shape.lines * shape.lane_bytes;
  }

  // Positions behind the last image.
  int64_t count_slack(const WindowShape& shape) const {
    const int64_t slack =
        taps_on_line_.find_last_shift(shape) + shape.segment_length + 2 * kLineAlignment;
    if (shape.pair_rows == 0) return slack;
    // Pairs of rows, and windows across a row, may start behind an image's last row.
    return slack + 2 * int64_t{shape.pair_rows} * shape.pitch +
           shape.column_windows * shape.columns;
  }

  // The number of images whose lines are in the workspace at a time; 0 if it is too small for one.
  int64_t count_images(const WindowShape& shape) {
    const int64_t positions = image_positions(shape), bytes = position_bytes(shape);
    const int64_t slack = count_slack(shape);
    const int64_t room = caps_.workspace_limit - shape.packed_bytes - shape.partial_bytes;
    const int64_t fitting = room / bytes - slack;  // positions
    if (problem_.N * positions <= fitting) return problem_.N;
    const auto count = [&](int64_t most_positions) -> int64_t {
      const int64_t most = most_positions / positions;
      return most < 1 ? 0 : ceil_div(problem_.N, ceil_div(problem_.N, most));
    };
    const int64_t images = count(fitting);
    if (count((room + scale_bytes_) / bytes - slack) != images) depends_on_workspace_ = true;
    return images;
  }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const PhaseCosts costs_;
  const GatherAxis rows_, columns_;
  const LineTaps taps_on_line_;
  const TensorMath math_;
  int64_t sources_ = 0, targets_ = 0, source_h_ = 0, source_w_ = 0, taps_ = 0;

  bool may_box_ = false, may_stream_ = false;

  WindowShape start_;     // what all candidates share
  WindowShape laid_out_;  // the candidate that is being bounded
  WindowShape best_;
  std::vector<Open> open_;    // a heap, the smallest bound in front
  double least_us_;           // a shape must be faster than this
  int best_order_ = 0;        // see Open
  int64_t scale_bytes_ = 0;   // that scaled fp16 takes from the workspace
  bool needs_bands_ = false;  // some line has too many positions
  bool lacks_workspace_ = false;
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

int64_t count_pixel_tiles(const WindowShape& shape, int64_t images) {
  if (shape.pair_rows > 0) return images * shape.pairs_per_image * shape.column_windows;
  const int64_t line = images * shape.strips * shape.rows * shape.pitch;
  return ceil_div(line, int64_t{shape.tile_step()});
}

}  // namespace convx
