#include "engines/cuda_window/window_shape.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/arithmetic.h"
#include "engines/cuda_window/window_costs.h"

namespace convx {
namespace {

constexpr int kWarps = 8;  // that store: two warpgroups
constexpr int kBarrierBytes = 1024;
constexpr int kTileAlignment = 1024;  // of a swizzled tile
constexpr int kMaxFilterStages = 16;
constexpr int kMaxSourceStages = 3;
// Reduction steps (of 32 bytes and one tap) summed by the tensor cores in one chain in kIeee: they
// truncate, so long chains drift towards zero. 4 steps are 64 terms.
constexpr int kIeeeChainSteps = 4;
constexpr int kWindowColumns[] = {256, 224, 192, 160, 128, 96, 64};
constexpr int kMaxFoldedSources = 8;
constexpr int kMaxIeeeColumns = 128;  // sums are kept twice

int64_t floor_div(int64_t a, int64_t b) { return (a - floor_mod(a, b)) / b; }

// How the taps of an axis fall on the phases of its source.
struct AxisReach {
  int64_t first = 0, last = 0;  // steps looked down (or right) by the first and the last tap
  std::vector<int64_t> phases;

  explicit AxisReach(const GatherAxis& axis) {
    std::set<int64_t> residues;
    for (int64_t i = 0; i < axis.taps; ++i) {
      residues.insert(floor_mod(axis.offset0 + i * axis.offset_step, axis.source_step));
    }
    phases.assign(residues.begin(), residues.end());
    first = floor_div(axis.offset0, axis.source_step);
    last = floor_div(axis.offset0 + (axis.taps - 1) * axis.offset_step, axis.source_step);
  }
  int64_t span() const { return last - first; }

  // Steps from one row (or image) to the next such that what taps reach past the end is zero: the
  // zeros before the first source value serve the end of the row before, too.
  int64_t shared_pitch(const GatherAxis& axis, int64_t source_extent) const {
    const int64_t reach = axis.count + span();  // no position of the next row is looked at
    const int64_t zeros = std::max<int64_t>(0, -first);
    const int64_t source_end = ceil_div(source_extent, axis.source_step) - first;
    return std::min(reach, std::max({axis.count, reach - zeros, source_end}));
  }
};

enum class Cut { kStretch, kRows, kRowPairs };

// A way to cut the line into tiles, before it is known whether shared memory can hold it.
struct Candidate {
  Cut cut;
  int strips;
  int columns;
  int filter_groups;
  int lane_bytes;
  WindowLoad load;
  int raw_stages = 0;
};

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, const GatherAxis& rows,
         const GatherAxis& columns)
      : problem_(problem),
        caps_(caps),
        rows_(rows),
        columns_(columns),
        row_reach_(rows),
        column_reach_(columns),
        math_(tensor_math(problem)) {
    const GatherView view = make_gather_view(problem);
    const Strides& source = view.source_strides;
    sources_ = view.source_channels;
    targets_ = view.target_channels;
    source_n_ = source.n;
    source_h_ = view.source_h;
    source_w_ = view.source_w;
    dense_ = source.c != 1 && source.w == 1 && source.h == source_w_;
  }

  WindowShape fit() const {
    WindowShape best;
    const int64_t taps = rows_.taps * columns_.taps;
    std::vector<std::pair<WindowLoad, int>> loads;  // and stages of raw planes
    if (taps <= kMaxWindowTaps) {
      if (dense_) loads = {{WindowLoad::kStaged, 3}, {WindowLoad::kStaged, 2}};
      loads.emplace_back(WindowLoad::kPlanes, 0);
    }
    // Rows and columns are 16-bit where taps are folded, and planes aligned alike.
    const bool foldable = dense_ && taps > 1 && sources_ * taps <= kMaxFoldedChannels &&
                          sources_ <= kMaxFoldedSources && std::max(source_h_, source_w_) < 30000 &&
                          (source_h_ * source_w_ * size_of(problem_.dtype)) % 16 == 0;
    if (foldable) {
      loads.emplace_back(WindowLoad::kFolded, 2);
      loads.emplace_back(WindowLoad::kFolded, 1);
    }
    for (const auto& [load, raw_stages] : loads) {
      for (const int lane_bytes : {32, 64, 128}) {
        for (const int columns : kWindowColumns) {
          if (math_ == TensorMath::kIeee && columns > kMaxIeeeColumns) continue;
          for (const int filter_groups : {1, 2}) {
            if (filter_groups == 2 && targets_ <= kWindowFilters) continue;
            Candidate candidate{Cut::kStretch, 1,    columns,   filter_groups,
                                lane_bytes,    load, raw_stages};
            consider(candidate, best);
            if (load == WindowLoad::kFolded) continue;
            for (const int strip : {128, 64, 32}) {
              candidate.strips = static_cast<int>(ceil_div(columns_.count, strip));
              if (candidate.strips > 1) consider(candidate, best);
            }
            candidate.strips = 1;
            candidate.cut = Cut::kRows;
            consider(candidate, best);
            candidate.cut = Cut::kRowPairs;
            if (filter_groups == 1) consider(candidate, best);
          }
        }
      }
    }
    if (best.columns == 0) return best;
    fill_tables(best);
    const int64_t tiles = best.pixel_tiles * best.filter_tiles * problem_.groups * best.splits;
    best.blocks = static_cast<int>(std::min<int64_t>(tiles, caps_.sm_count));
    return best;
  }

 private:
  void consider(const Candidate& candidate, WindowShape& best) const {
    WindowShape shape = lay_out(candidate);
    if (!fit_shared_memory(shape)) return;
    const int most = shape.resident ? 1 : static_cast<int>(std::min<int64_t>(shape.chunks, 8));
    if (shape.chunks > kMaxTensorChunks) return;
    for (int splits = 1; splits <= most; ++splits) {
      shape.splits = splits;
      shape.partial_bytes = splits == 1 ? 0 : splits * target_elements() * 4;
      if (shape.packed_bytes + shape.partial_bytes > caps_.workspace_limit) break;
      shape.microseconds = predict_microseconds(problem_, caps_, shape);
      if (best.columns == 0 || shape.microseconds < best.microseconds) best = shape;
      if (shape.pixel_tiles * shape.filter_tiles * problem_.groups >= 2 * caps_.sm_count) break;
    }
  }

  int64_t target_elements() const {
    return problem_.N * problem_.groups * targets_ * rows_.count * columns_.count;
  }

  WindowShape lay_out(const Candidate& candidate) const {
    const bool folded = candidate.load == WindowLoad::kFolded;
    WindowShape shape;
    shape.math = math_;
    shape.rows_axis = rows_;
    shape.columns_axis = columns_;
    shape.load = candidate.load;
    shape.raw_stages = candidate.raw_stages;
    shape.columns = candidate.columns;
    shape.filter_groups = candidate.filter_groups;
    shape.threads = count_threads(math_, candidate.columns);
    shape.lane_bytes = candidate.lane_bytes;
    shape.chunk_channels = candidate.lane_bytes / operand_bytes(math_);
    const int64_t taps = rows_.taps * columns_.taps;
    shape.channels = static_cast<int>(folded ? sources_ * taps : sources_);
    shape.chunks = static_cast<int>(ceil_div(shape.channels, shape.chunk_channels));
    shape.group_sources = static_cast<int>(sources_);
    shape.filter_tiles =
        static_cast<int>(ceil_div(targets_, kWindowFilters * candidate.filter_groups));

    // The line.
    shape.strips = candidate.strips;
    shape.strip_columns = static_cast<int>(ceil_div(columns_.count, candidate.strips));
    int64_t pitch = columns_.count;
    int64_t rows = rows_.count;
    if (!folded) {
      pitch = candidate.strips == 1 ? column_reach_.shared_pitch(columns_, source_w_)
                                    : shape.strip_columns + column_reach_.span();
      rows = row_reach_.shared_pitch(rows_, source_h_);
      shape.row_base = static_cast<int>(row_reach_.first);
      shape.column_base = static_cast<int>(column_reach_.first);
    }
    shape.pitch = static_cast<int>(pitch);
    shape.rows = static_cast<int>(rows);

    // Tiles.
    const int windows = shape.windows();
    shape.window_step = shape.columns;
    if (overlaps(shape, candidate)) {
      // A window keeps as many positions more as whole sectors of each filter's row may need, and
      // as many as belong to no pixel at the end of a row.
      const int64_t sector = 32 / size_of(problem_.dtype);
      shape.window_step -= static_cast<int>(round_up(sector + pitch - columns_.count, 8));
    }
    shape.second_window = windows == 2 ? shape.window_step : 0;
    const int64_t line = problem_.N * shape.strips * rows * pitch;
    shape.pixel_tiles = ceil_div(line, int64_t{shape.window_step} * windows);
    const int64_t phases = folded ? 1 : row_reach_.phases.size() * column_reach_.phases.size();
    const int64_t column_phases = folded ? 1 : column_reach_.phases.size();
    const int64_t row_span = folded ? 0 : row_reach_.span();
    const int64_t column_span = folded ? 0 : column_reach_.span();
    int64_t cover = shape.second_window + shape.columns;
    int64_t segments = phases;
    int64_t length = cover + row_span * pitch + column_span;
    shape.second_offset = shape.second_window;
    shape.by_rows = candidate.cut != Cut::kStretch;
    if (shape.by_rows) {
      int64_t kernel_rows = rows_.taps;
      if (candidate.cut == Cut::kRowPairs) {
        // The second window looks at rows the first one's taps reach as well, all but the last few.
        const int64_t step = rows_.offset_step / std::gcd(rows_.offset_step, rows_.source_step);
        const int64_t further = step * rows_.source_step / rows_.offset_step;
        shape.pair_rows = static_cast<int>(step);
        shape.pairs_per_image = static_cast<int>(ceil_div(rows_.count, 2 * step) * step);
        shape.column_windows = static_cast<int>(ceil_div(columns_.count, shape.columns));
        shape.pixel_tiles = problem_.N * shape.pairs_per_image * shape.column_windows;
        shape.second_window = static_cast<int>(step * pitch);
        kernel_rows += further;
        cover = shape.columns;
      }
      segments = kernel_rows * column_phases;
      length = cover + column_span;
      if (candidate.cut == Cut::kRowPairs) {
        const int64_t step = shape.pair_rows;
        const int64_t further = step * rows_.source_step / rows_.offset_step;
        shape.second_offset = static_cast<int>(further * column_phases * length);
      }
    }
    constexpr int64_t kMaxLine = int64_t{1} << 30;  // positions are 32-bit
    if (segments > kMaxWindowSegments || length > (1 << 14) || line > kMaxLine) segments = 0;
    if (candidate.load == WindowLoad::kPlanes) {  // offsets from a tile's first image are 32-bit
      const int64_t images = (row_span * pitch + length) / (shape.strips * rows * pitch) + 2;
      if (std::min(images, problem_.N) * source_n_ > std::numeric_limits<int>::max()) segments = 0;
    }
    shape.segments.resize(segments);
    shape.segment_length = static_cast<int>(length);
    if (shape.raw_stages > 0) lay_out_spans(shape, candidate);
    return shape;
  }

  // Which stretches of planes a tile's positions look at, at most. Leaves segments empty where
  // there are too many.
  void lay_out_spans(WindowShape& shape, const Candidate& candidate) const {
    const int64_t length = shape.segment_length;
    const bool dense = rows_.source_step == 1 && columns_.source_step == 1;
    // Positions advance at least as fast as the source values of a dense line.
    int64_t elements = length;
    const int64_t line_rows = (length + shape.pitch - 2) / shape.pitch + 1;  // that it touches
    const int64_t touched = candidate.cut == Cut::kRowPairs
                                ? 1
                                : (length - 2) / (int64_t{shape.rows} * shape.pitch) + 2;
    if (shape.folded()) {
      const int64_t halo = (rows_.taps - 1) * rows_.offset_step;
      elements = (line_rows * rows_.source_step + touched * halo) * source_w_;
    } else if (!dense) {
      elements = line_rows * rows_.source_step * source_w_;
    }
    elements = std::min(elements, touched * source_h_ * source_w_);
    const int64_t lines = shape.by_rows ? static_cast<int64_t>(shape.segments.size()) : 1;
    const int64_t images = std::min<int64_t>(touched, std::max<int64_t>(1, problem_.N));
    // A span of a strip would hold all columns, that of a strided row all rows between.
    const bool wasteful = shape.strips > 1 || (shape.by_rows && !dense);
    if (wasteful || lines * images > kMaxWindowSpans ||
        lines * images * shape.raw_channels() > kMaxWindowCopies) {
      shape.segments.clear();
      return;
    }
    const int64_t unit = 16 / size_of(problem_.dtype);
    shape.spans = static_cast<int>(lines * images);
    shape.span_images = static_cast<int>(images);
    shape.raw_pitch =
        static_cast<int>(round_up(unit + lines * elements + 2 * unit * lines * images, unit));
  }

  // Windows overlap where storing takes as long as multiplying: then only whole sectors are stored.
  bool overlaps(const WindowShape& shape, const Candidate& candidate) const {
    const bool wide = candidate.cut != Cut::kRowPairs && shape.strips == 1 &&
                      shape.pitch >= shape.columns && !shape.folded();
    const int64_t steps = ceil_div(shape.channels * operand_bytes(math_), 32) * rows_.taps *
                          columns_.taps * (math_ == TensorMath::kIeee ? 6 : 1);
    return wide && steps <= 24 && shape.columns >= 128 &&
           columns_.count % (32 / size_of(problem_.dtype)) != 0;
  }

  bool fit_shared_memory(WindowShape& shape) const {
    const int64_t positions = shape.positions();
    const int64_t taps = shape.folded() ? 1 : rows_.taps * columns_.taps;
    if (positions == 0) return false;
    const int planes = shape.planes();
    const int64_t plane = round_up(positions * shape.lane_bytes, kTileAlignment);
    shape.plane_bytes = static_cast<int>(plane);
    int64_t table = taps * 4 + 12 * static_cast<int64_t>(shape.segments.size()) + 8 * positions;
    if (shape.folded()) table += 8 * round_up(shape.channels, shape.chunk_channels);
    shape.table_offset = kBarrierBytes;
    shape.staging_offset = static_cast<int>(round_up(kBarrierBytes + table, 128));
    const int64_t staging = kWarps * staging_bytes(shape.columns);
    shape.raw_offset = static_cast<int>(shape.staging_offset + staging);
    const int64_t raw_stage =
        int64_t{shape.raw_pitch} * shape.raw_channels() * size_of(problem_.dtype);
    shape.source_offset =
        static_cast<int>(round_up(shape.raw_offset + shape.raw_stages * raw_stage, kTileAlignment));

    const int64_t tap_bytes =
        int64_t{shape.filter_groups} * planes * kWindowFilters * shape.lane_bytes;
    int64_t stage_taps = std::clamp<int64_t>(18432 / tap_bytes, 1, taps);
    if (math_ == TensorMath::kIeee) {
      stage_taps =
          std::min<int64_t>(stage_taps, std::max(1, kIeeeChainSteps * 32 / shape.lane_bytes));
    }
    const int64_t stages_per_chunk = ceil_div(taps, stage_taps);
    stage_taps = ceil_div(taps, stages_per_chunk);
    shape.stage_taps = static_cast<int>(stage_taps);
    const int64_t stage_bytes = stage_taps * tap_bytes;
    const int64_t all_stages = stages_per_chunk * shape.chunks;

    const int64_t room = caps_.shared_bytes_per_block - shape.source_offset - kTileAlignment;
    const int64_t source_stage = plane * planes;
    int64_t source_stages = std::min<int64_t>(kMaxSourceStages, room / source_stage);
    while (source_stages > 2 && room - source_stages * source_stage < 3 * stage_bytes) {
      --source_stages;
    }
    if (source_stages < 2) return false;
    const int64_t filter_stages =
        std::min<int64_t>((room - source_stages * source_stage) / stage_bytes, kMaxFilterStages);
    const bool one_tile = shape.filter_tiles == 1 && problem_.groups == 1;
    // Filters that fit stay: a tile more of positions is not worth reading them again.
    const int64_t left = (room - 2 * source_stage) / stage_bytes;
    shape.resident = one_tile && all_stages <= std::min<int64_t>(left, kMaxFilterStages);
    if (shape.resident) {
      shape.filter_stages = static_cast<int>(all_stages);
      source_stages =
          std::min<int64_t>(kMaxSourceStages, (room - all_stages * stage_bytes) / source_stage);
    } else {
      if (filter_stages < 2) return false;
      shape.filter_stages = static_cast<int>(filter_stages);
    }
    shape.source_stages = static_cast<int>(source_stages);
    shape.filter_offset = static_cast<int>(shape.source_offset + source_stages * source_stage);
    shape.shared_bytes =
        static_cast<int>(shape.filter_offset + shape.filter_stages * stage_bytes + kTileAlignment);
    shape.packed_bytes = problem_.groups * shape.filter_tiles * shape.chunks * taps * tap_bytes;
    return shape.shared_bytes <= caps_.shared_bytes_per_block &&
           shape.packed_bytes <= caps_.workspace_limit;
  }

  void fill_tables(WindowShape& shape) const {
    if (shape.folded()) {
      shape.tap_positions = {0};
      return;
    }
    const auto& row_phases = row_reach_.phases;
    const auto& column_phases = column_reach_.phases;
    const auto place = [](const std::vector<int64_t>& phases, int64_t phase) {
      return std::find(phases.begin(), phases.end(), phase) - phases.begin();
    };
    const bool by_rows = shape.by_rows;
    for (size_t i = 0; i < shape.segments.size(); ++i) {
      WindowSegment& segment = shape.segments[i];
      const int64_t row = static_cast<int64_t>(i / column_phases.size());
      segment.column_phase = static_cast<int>(column_phases[i % column_phases.size()]);
      if (by_rows) {
        const int64_t offset = rows_.offset0 + row * rows_.offset_step;
        const int64_t down = floor_div(offset, rows_.source_step) - row_reach_.first;
        segment.shift = static_cast<int>(down * shape.pitch);
        segment.row_phase = static_cast<int>(floor_mod(offset, rows_.source_step));
      } else {
        segment.row_phase = static_cast<int>(row_phases[row]);
      }
    }
    for (int64_t i = 0; i < rows_.taps; ++i) {
      const int64_t row_offset = rows_.offset0 + i * rows_.offset_step;
      const int64_t down = floor_div(row_offset, rows_.source_step) - row_reach_.first;
      for (int64_t j = 0; j < columns_.taps; ++j) {
        const int64_t offset = columns_.offset0 + j * columns_.offset_step;
        const int64_t right = floor_div(offset, columns_.source_step) - column_reach_.first;
        const int64_t column = place(column_phases, floor_mod(offset, columns_.source_step));
        const int64_t row =
            by_rows ? i : place(row_phases, floor_mod(row_offset, rows_.source_step));
        const int64_t segment = row * static_cast<int64_t>(column_phases.size()) + column;
        const int64_t shift = (by_rows ? 0 : down * shape.pitch) + right;
        shape.tap_positions.push_back(static_cast<int>(segment * shape.segment_length + shift));
      }
    }
  }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const GatherAxis rows_, columns_;
  const AxisReach row_reach_, column_reach_;
  const TensorMath math_;
  int64_t sources_ = 0, targets_ = 0, source_n_ = 0, source_h_ = 0, source_w_ = 0;
  bool dense_ = false;  // planes of the source have no gaps
};

}  // namespace

WindowShape fit_window_shape(const ConvProblem& problem, const DeviceCaps& caps,
                             const GatherAxis& rows, const GatherAxis& columns) {
  return Fitter(problem, caps, rows, columns).fit();
}

}  // namespace convx
