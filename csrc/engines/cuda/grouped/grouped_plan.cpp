// Plans of cuda_grouped: the tile of the NCHW kernel with FFMA, and the choice among it and the
// kernels that grouped_pixel_fit.cpp and grouped_mma_fit.cpp fit.
#include "engines/cuda/grouped/grouped_planning.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/grouped_geometry.h"
#include "planning/gather_axis.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

// Lanes would separate neighbouring outputs. If taps slide only with lanes, each tap is its own
// class.
CudaAxis fit_axis(const AxisPhase& phase) {
  const GatherAxis sliding = make_gather_axis(phase, true);
  return make_cuda_axis(sliding.lanes == 1 ? sliding : make_gather_axis(phase, false));
}

int64_t count_column_tiles(const GroupedTask& p) { return ceil_div(p.column.count, p.tile_cols); }
int64_t count_row_tiles(const GroupedTask& p) { return ceil_div(p.row.count, p.tile_rows); }
int64_t count_group_tiles(const GroupedTask& p) { return ceil_div(p.groups, p.tile_groups); }

constexpr int64_t kCellAlign = 4;  // elements per shared-memory load

// Values that all tiles of a problem share.
struct GroupedProblem {
  const ConvProblem& problem;
  const DeviceCaps& caps;
  GroupedParams params;
  ColumnWindow window;
  int64_t element;  // bytes
  int64_t unit;     // elements per copy
  int64_t margin;   // elements of a line before the first cell's column
  int64_t filter_sets, filters;
  double cell_issue;  // instructions of a warp for one cell of one image
  double least_bytes;
};

bool is_whole(ColumnWindow window) { return window != ColumnWindow::kSegments; }

// Sets how lines are copied by units, and returns the units of a segment.
int64_t lay_out_units(GroupedParams& p, ColumnWindow window, int unit, int threads) {
  p.segment_first = is_whole(window) ? p.cell_start - unit : 0;
  const int64_t units = ceil_div(p.segment_columns - p.segment_first, unit);
  set_stage_units(p.stage, units * p.column.classes, unit, threads);
  return units;
}

void set_unit(GroupedParams& p, ColumnWindow window, int unit, int threads) {
  p.by_segment_units = FastDivmod(lay_out_units(p, window, unit, threads));
}

// Warp instructions for one cell of one image; see grouped_multiply.cuh.
double count_cell_issue(const GroupedProblem& of) {
  const GroupedParams& p = of.params;
  const double filters = static_cast<double>(of.filters);
  const double class_taps = p.column.most_class_taps();
  const double runs = is_whole(of.window) ? 1 : p.column.classes * std::ceil(class_taps / 4);
  const double run_taps = is_whole(of.window) ? 3 : std::min(class_taps, 4.0);
  const double values = 3 * window_stride(of.window) + run_taps;
  const double loads = is_whole(of.window) ? 3 : std::ceil(values / 4);
  const double convert = of.element == 2 ? values : 0;
  // Each row of taps of a class reads one more source row; the first one reads all four.
  const double source_rows = p.row.taps + (kCellRows - 1.0) * p.row.classes;
  const double products = filters * kCellRows * kCellColumns * p.row.taps * p.column.taps;
  double per_run = source_rows * (loads + convert + 1) + p.row.taps * run_taps;
  if (!is_whole(of.window)) {
    per_run += kGroupedRunIssue * p.row.classes + kGroupedTapRowIssue * p.row.taps;
  }
  const double per_channel = products + kGroupedChannelIssue + runs * per_run;
  const double stores = filters * kCellRows * kCellColumns / p.store_width;
  return kGroupedImageIssue + p.source_channels * per_channel + stores * kGroupedStoreIssue;
}

GroupedProblem make_grouped_problem(const ConvProblem& problem, const DeviceCaps& caps) {
  GroupedProblem of{problem, caps, {}, ColumnWindow::kSegments, size_of(problem.dtype), 1, 0,
                    1,       1,    0,  count_bytes(problem)};
  GroupedParams& p = of.params;
  static_cast<GroupedTask&>(p) = make_grouped_task(problem);
  p.by_row_taps = FastDivmod(p.row.taps);
  p.by_channels = FastDivmod(p.source_channels);
  of.filters = p.target_channels > kFewFilters ? kManyFilters : kFewFilters;
  of.filter_sets = ceil_div(p.target_channels, of.filters);
  p.by_filter_sets = FastDivmod(of.filter_sets);

  // The widest copies that the tensor allows for lines that begin at source column `start`.
  const auto fit_copies = [&](int64_t start, int64_t step) {
    return fit_unit(of.element, int64_t{p.source_width}, problem.N > 1 ? p.source_n : 0, p.source_c,
                    p.source_h, start, step);
  };
  CudaAxis& column = p.column;
  const auto is_three = [](const CudaAxis& axis, int stride) {
    return axis.taps == 3 && axis.offset_step == 1 && axis.source_step == stride;
  };
  const auto is_3x3 = [&](int stride) {
    return is_three(p.row, stride) && is_three(column, stride) && of.filters == kManyFilters;
  };
  const int rows_unit = fit_copies(column.offset0 + 1, 0);
  const int segments_unit =
      column.period == 1 ? fit_copies(column.offset0, column.classes > 1 ? column.offset_step : 0)
                         : 1;
  if (is_3x3(1) && rows_unit >= segments_unit) {
    of.window = ColumnWindow::kRows;
  } else if (is_3x3(2)) {
    of.window = ColumnWindow::kRowsStride2;
  }
  of.unit = segments_unit;
  p.column_start = column.offset0, p.column_step = column.period;
  if (is_whole(of.window)) {
    of.unit = rows_unit;
    of.margin = std::max<int64_t>(rows_unit, kCellAlign);
    column.classes = 1, column.class_taps = column.taps, column.longer_classes = 0;
    p.column_start = narrow(column.offset0 + 1 - of.margin), p.column_step = 1;
  }
  p.cell_start = narrow(of.margin);
  p.store_width =
      fit_unit(4, int64_t{column.count}, p.target_h,
               p.groups * p.target_channels > 1 ? p.target_c : 0, problem.N > 1 ? p.target_n : 0);
  of.cell_issue = count_cell_issue(of);
  return of;
}

// Shared-memory cycles of a warp's cells in one image.
double count_cell_wavefronts(const GroupedProblem& of) {
  const GroupedParams& p = of.params;
  const double reads = (p.row.taps + 3.0 * p.row.classes) *
                       (p.column.taps + 3.0 * window_stride(of.window)) *
                       static_cast<double>(of.element) / 4;
  return p.source_channels * (reads + p.row.taps * p.column.taps);
}

double predict_us(const GroupedProblem& of, const GroupedFit& fit) {
  const GroupedParams& p = fit.params;
  const double element = static_cast<double>(of.element);
  const double channels = p.source_channels;
  const double images = p.tile_images;
  const double warps = fit.threads / 32.0;
  const double lines = static_cast<double>(p.tile_groups) * p.stage.rows;
  const double passes = p.tile_groups *
                        std::ceil(static_cast<double>(p.stage.rows) / p.stage.lines_per_pass) *
                        std::ceil(static_cast<double>(p.stage.units) / fit.threads);
  const double unit_issue =
      p.stage.unit * of.element < 4 ? kGroupedElementIssue : kGroupedUnitIssue;
  const double weight_rows =
      static_cast<double>(p.tile_groups * of.filter_sets * of.filters) * channels * p.row.taps;
  const double units = channels * lines * p.stage.units;
  const double results = static_cast<double>(p.tile_groups) * std::min(p.tile_rows, p.row.count) *
                         std::min(p.tile_cols, p.column.count) * p.target_channels;
  const double cell_warps = static_cast<double>(ceil_div(p.cells, 32));
  GroupedWork work{};
  work.blocks = static_cast<double>(fit.blocks);
  work.issue = warps * (kGroupedBlockIssue +
                        std::ceil(weight_rows / fit.threads) *
                            (kGroupedWeightRowIssue + kGroupedWeightIssue * p.column.taps)) +
               images * (cell_warps * of.cell_issue +
                         warps * (p.chunks * (kGroupedStepIssue + passes * kGroupedLineIssue) +
                                  passes * channels * unit_issue));
  // Shared memory: lines are written once and read by cells; weights are read.
  work.wavefronts =
      images * (units * p.stage.unit * element / 128 + cell_warps * count_cell_wavefronts(of));
  work.busy_warps = cell_warps;
  work.moved_bytes =
      images * (units * p.stage.unit * element +
                results * element * (p.store_width == 4 ? 1 : kGroupedNarrowStoreBytes));
  work.steps = images * p.chunks;
  work.least_bytes = of.least_bytes;
  work.resident = fit.resident;
  work.overlaps = p.buffers > 1 && work.steps > 1;
  return predict_grouped_us(work, of.caps);
}

// The cells of a tile.
int64_t count_cells(const GroupedProblem& of, const GroupedTile& tile) {
  return tile.groups * of.filter_sets * (tile.rows / kCellRows) * (tile.columns / kCellColumns);
}

// Microseconds that no launch falls below whose warps compute so many sets of 32 cells of an image.
double bound_us(const GroupedProblem& of, double cell_warps) {
  return bound_grouped_us(cell_warps * of.cell_issue, cell_warps * count_cell_wavefronts(of),
                          of.least_bytes, of.caps);
}

// A tile computes all of its cells, also those that reach beyond the image.
double bound_tile_us(const GroupedProblem& of, const GroupedTile& tile) {
  const auto cells = static_cast<double>(ceil_div(count_cells(of, tile), 32));
  return bound_us(of, cells * count_grouped_blocks(of.params, tile));
}

// Every tile computes the cells of the image.
double bound_all_tiles_us(const GroupedProblem& of) {
  const GroupedParams& p = of.params;
  const int64_t cells = p.groups * of.filter_sets * ceil_div(p.row.count, kCellRows) *
                        ceil_div(p.column.count, kCellColumns);
  return bound_us(of, static_cast<double>(p.images * cells) / 32);
}

// Sets all parameters of a tile except tile_images. Returns false if the tile does not fit.
bool fit_tile(const GroupedProblem& of, const GroupedTile& tile, int64_t buffers, GroupedFit& fit) {
  fit.params = of.params;
  fit.kernel = {of.window, narrow(of.filters)};
  GroupedParams& p = fit.params;
  const CudaAxis& row = p.row;
  const CudaAxis& column = p.column;
  const int64_t cells = count_cells(of, tile);
  if (cells > kGroupedThreads) return false;
  fit.threads = narrow(round_up(cells, 32));

  const int64_t align = std::max(kCellAlign, of.unit);
  const int64_t class_taps = column.most_class_taps();
  const int64_t staged_rows = row.count_span(tile.rows);
  const bool whole = is_whole(of.window);
  // `copied` ends with the last column's last tap. Elements behind it are read as part of a vector
  // but not used.
  const int64_t copied = whole ? of.margin + (tile.columns - 1) * column.source_step + 2
                               : tile.columns + class_taps - 1;
  const int64_t segment_pitch =
      round_up(whole ? copied : tile.columns + round_up(class_taps - 1, kCellAlign), align);
  // An odd multiple spreads rows of several cells over the banks.
  const int64_t line_pitch = (ceil_div(column.classes * segment_pitch, align) | 1) * align;

  const int64_t group_pitch = staged_rows * line_pitch;
  const int64_t channel_pitch = tile.groups * group_pitch;
  const int64_t chunk = std::min<int64_t>(p.source_channels, kChunkChannels);
  const int64_t chunks = ceil_div(p.source_channels, chunk);
  const int64_t buffer_pitch = chunk * channel_pitch;
  const int64_t tap_row_weights = column.classes * class_taps * of.filters;
  const int64_t set_weights = p.source_channels * row.taps * tap_row_weights;
  const int64_t weights_offset = round_up(buffers * buffer_pitch * of.element, 16);
  const int64_t bias_offset = weights_offset + tile.groups * of.filter_sets * set_weights * 4;
  const int64_t places_offset =
      round_up(bias_offset + tile.groups * of.filter_sets * of.filters * 4, 16);
  fit.shared_bytes = places_offset + fit.threads * static_cast<int64_t>(sizeof(ThreadPlaces));
  if (fit.shared_bytes > of.caps.shared_bytes_per_block) return false;
  fit.resident = std::min<int64_t>(of.caps.count_blocks_by_shared(fit.shared_bytes),
                                   count_resident_threads(of.window) / fit.threads);

  p.tile_groups = narrow(tile.groups);
  p.tile_rows = narrow(tile.rows), p.tile_cols = narrow(tile.columns);
  p.cells = narrow(cells);
  p.chunk = narrow(chunk), p.chunks = narrow(chunks);
  p.buffers = narrow(buffers);
  p.stage.rows = narrow(staged_rows), p.stage.line_pitch = narrow(line_pitch);
  p.segment_columns = narrow(copied), p.segment_pitch = narrow(segment_pitch);
  p.group_pitch = narrow(group_pitch), p.channel_pitch = narrow(channel_pitch);
  p.buffer_pitch = narrow(buffer_pitch);
  p.row_step = narrow(row.period * line_pitch);
  p.row_class_step = narrow(row.offset_step * line_pitch);
  p.class_taps_pitch = narrow(class_taps);
  p.tap_row_weights = narrow(tap_row_weights);
  p.channel_weights = narrow(row.taps * tap_row_weights), p.set_weights = narrow(set_weights);
  p.weights_offset = narrow(weights_offset), p.bias_offset = narrow(bias_offset);
  p.places_offset = narrow(places_offset);
  lay_out_units(p, of.window, narrow(of.unit), fit.threads);
  return true;
}

// FastDivmod constructors are slow, so only the chosen tile gets its divisors.
void set_divisors(GroupedFit& fit) {
  GroupedParams& p = fit.params;
  set_tile_divisors(p);
  set_unit(p, fit.kernel.window, p.stage.unit, fit.threads);
  p.by_strips = FastDivmod(p.tile_cols / kCellColumns);
  p.by_row_groups = FastDivmod(p.tile_rows / kCellRows);
}

constexpr int64_t kMostChannels = 16;  // per group, of source and target

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.pass == Pass::kInputGrad && p.stride != Hw{1, 1}) {
    return "it computes the input gradient for stride 1 only";
  }
  if (p.dtype == DType::kFloat64) return "it sums in float32";
  const bool forward = p.pass == Pass::kForward;
  const int64_t source_channels = forward ? p.channels_per_group() : p.filters_per_group();
  const int64_t target_channels = forward ? p.filters_per_group() : p.channels_per_group();
  if (source_channels < 2) return "it needs at least two channels to sum over in a group";
  if (source_channels > kMostChannels || target_channels > kMostChannels) {
    return "there are more than 16 channels or filters in a group";
  }
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  const Strides& w = p.w_strides;
  if (p.filters_per_group() * w.n + p.channels_per_group() * w.c + p.R * w.h + p.S * w.w >=
      int64_t{1} << 31) {
    return "the weights of a group are more than 2^31 elements apart";
  }
  if (!has_grouped_planes(p)) return refuse_grouped_pixels(p);
  if (!fits_grouped(p, caps)) return "no tile fits in shared memory";
  return "";
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps,
                       const SearchLimits& limits) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaGrouped;
  GroupedFit fit = fit_grouped(problem, caps, limits.give_up_us);
  if (fit.blocks == 0 && fit.mma.blocks == 0 && fit.pixels.blocks == 0) {
    return Refusal{"it is predicted to be slower than another engine"};
  }
  const GroupedTask& task = fit.task();
  plan.tile = {task.tile_rows, task.tile_cols, task.tile_groups};
  if (fit.pixels.blocks > 0) {
    plan.tile = {1, kPixelStrip, fit.pixels.params.block_quads * kPixelQuad};
  }
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(std::move(fit));
  return plan;
}

}  // namespace

GroupedTask make_grouped_task(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  GroupedTask p{};
  set_grouped_tensors(problem, view, p);
  p.images = narrow(problem.N), p.groups = narrow(problem.groups);
  p.source_c = view.source_strides.c, p.target_c = view.target_strides.c;
  p.source_group = p.source_channels * p.source_c;
  p.row = fit_axis(view.rows[0]);
  p.column = fit_axis(view.columns[0]);
  p.weight_first = narrow(p.row.tap0 * problem.w_strides.h + p.column.tap0 * problem.w_strides.w);
  p.weight_row = narrow(p.row.tap_step * problem.w_strides.h);
  p.weight_column = narrow(p.column.tap_step * problem.w_strides.w);
  return p;
}

int64_t count_grouped_tiles(const GroupedTask& p) {
  return count_column_tiles(p) * count_row_tiles(p) * count_group_tiles(p);
}
void set_tile_divisors(GroupedTask& p) {
  p.by_column_tiles = FastDivmod(count_column_tiles(p));
  p.by_row_tiles = FastDivmod(count_row_tiles(p));
  p.by_group_tiles = FastDivmod(count_group_tiles(p));
}

// A single column has no neighbour, and PyTorch may give it any stride.
bool has_grouped_planes(const ConvProblem& p) {
  return (p.W <= 1 || p.x_strides.w == 1) && (p.Q <= 1 || p.y_strides.w == 1);
}

GroupedFit fit_grouped(const ConvProblem& problem, const DeviceCaps& caps, double give_up_us) {
  if (!has_grouped_planes(problem)) {
    GroupedFit fit;
    fit.pixels = fit_grouped_pixels(problem, caps);
    fit.microseconds = fit.pixels.microseconds;
    return fit;
  }
  GroupedMmaFit mma = fit_grouped_mma(problem, caps, give_up_us);
  if (mma.blocks > 0) give_up_us = mma.microseconds;
  const GroupedProblem of = make_grouped_problem(problem, caps);
  GroupedFit best;
  // FFMA wins where both predictions are equal.
  const double most_us = std::nextafter(give_up_us, kNeverGiveUp);
  if (bound_all_tiles_us(of) < most_us) {
    best = find_fastest_tile<GroupedFit>(
        of.params, caps, kCellRows, std::max<int64_t>(kCellColumns, of.unit), kMostBuffers, most_us,
        [&](const GroupedTile& tile) { return bound_tile_us(of, tile); },
        [&](const GroupedTile& tile, int64_t buffers, GroupedFit& fit) {
          return fit_tile(of, tile, buffers, fit);
        },
        [&](GroupedFit& fit) {
          const GroupedParams& p = fit.params;
          if (p.buffers > int64_t{p.tile_images} * p.chunks) return false;  // one would stay unused
          fit.microseconds = predict_us(of, fit);
          return true;
        });
  }
  if (best.blocks > 0) {
    set_divisors(best);
  } else if (mma.blocks > 0) {
    best.microseconds = mma.microseconds;
    best.mma = std::move(mma);
  }
  return best;
}

bool fits_grouped(const ConvProblem& problem, const DeviceCaps& caps) {
  const GroupedProblem of = make_grouped_problem(problem, caps);
  GroupedFit smallest;
  return fit_tile(of, {1, kCellRows, std::max<int64_t>(kCellColumns, of.unit)}, 1, smallest) &&
         count_grouped_tiles(smallest.params) < int64_t{1} << 31;
}

GroupedParams make_grouped_params(const ConvProblem& problem, const GroupedFit& fit,
                                  const Buffers& buffers) {
  GroupedParams params = fit.params;
  set_gather_buffers(params, problem, buffers);
  const int64_t element = size_of(problem.dtype);
  const int unit = fit_unit_to_address(params.source, element, params.stage.unit);
  if (unit < params.stage.unit) set_unit(params, fit.kernel.window, unit, fit.threads);
  params.store_width = fit_unit_to_address(params.target, element, params.store_width);
  return params;
}

void GroupedFit::describe(Text& out) const {
  if (pixels.blocks > 0) {
    out << "channels_last, " << pixels.params.slots << " strips of " << kPixelStrip << " pixels x "
        << pixels.params.block_quads * kPixelQuad << " filters, FFMA";
    return;
  }
  const GroupedTask& t = task();
  out << "tile " << count_text(t.tile_groups, "group") << " x " << t.tile_rows << "x" << t.tile_cols
      << " pixels of " << count_text(t.tile_images, "image") << ", ";
  if (mma.blocks > 0) {
    out << mma.kernel.cells << " cells of " << mma.kernel.filters << " filters per warp, MMA";
  } else {
    out << kernel.filters << " filters per thread, " << count_text(params.chunks, "chunk") << " of "
        << count_text(params.chunk, "channel");
    describe_stages(out, params.buffers);
    out << ", FFMA";
  }
}

Engine cuda_grouped_engine() {
  return {.id = EngineId::kCudaGrouped,
          .name = "cuda_grouped",
          .consider = consider,
          .separate_pass_us = pass_us_unless_relu};
}

}  // namespace convx
