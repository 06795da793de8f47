// The tiles of plane_kernel.cuh and channels_last_kernel.cuh.
#include <algorithm>
#include <optional>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "core/gather_view.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_geometry.h"

namespace convx {
namespace {

// If there are few tiles, the filters of a channel are divided among several blocks.
struct FilterShares {
  int64_t filters, shares;  // of a channel: filters per block; blocks

  FilterShares(int64_t multiplier, int64_t tiles, int64_t sm_count) {
    constexpr int64_t kBlocksPerSm = 4;
    const int64_t wanted = ceil_div(kBlocksPerSm * sm_count, std::max<int64_t>(1, tiles));
    filters = ceil_div(multiplier, std::min(multiplier, wanted));
    shares = ceil_div(multiplier, filters);
  }
};

// If a tile has only part of the columns, each row of outputs is stored with two partial ends.
constexpr double kRowsApartCost = 1.25;

// Values that all tiles of a problem share.
struct PlaneProblem {
  const ConvProblem& problem;
  const DeviceCaps& caps;
  DepthwiseTensors t;
  int64_t element;        // bytes
  int64_t planes;         // source planes
  int64_t unit, shift;    // elements per copy; see PlaneParams::column_shift
  int64_t rows, columns;  // lattice rows and columns per lane, including the shift
  int taps;               // one of kPlaneTaps
};

PlaneProblem make_plane_problem(const ConvProblem& problem, const DeviceCaps& caps,
                                const DepthwiseTensors& t) {
  PlaneProblem of{problem, caps, t, size_of(problem.dtype), problem.N * problem.C, 1, 0, 0, 0, 0};
  const CudaAxis& column = t.column;
  if (column.period == 1 && column.classes == 1) {
    of.unit = fit_unit(of.element, int64_t{t.source_width}, problem.N > 1 ? t.source_n : 0,
                       problem.C > 1 ? t.source_c : 0, t.source_height > 1 ? t.source_h : 0);
    of.shift = floor_mod(column.offset0, of.unit);
  }
  of.rows = ceil_div(t.row.count, t.row.lanes);
  of.columns = ceil_div(column.count, column.lanes) + of.shift;
  of.taps = kPlaneTaps[of.element == 4 && column.most_class_taps() > kPlaneTaps[0]];
  return of;
}

// Set the width of the copies to `unit` elements.
void set_plane_unit(PlaneParams& p, int unit) {
  const int64_t units = ceil_div(p.segment_columns, unit);
  set_stage_units(p.stage, units * p.t.column.lanes * p.t.column.classes, unit, kDepthwiseThreads);
  p.by_segment_units = FastDivmod(units);
}
void set_channels_last_unit(ChannelsLastParams& p, int unit) {
  const int64_t units = p.chunk / unit;
  set_stage_units(p.stage, units * p.staged_cols, unit, kDepthwiseThreads);
  p.by_pixel_units = FastDivmod(units);
}

struct PlaneTile {
  int64_t planes, rows, columns;  // rows and columns per lane
};

// Sets the parameters of a tile and predicts its time. Returns false if the tile does not fit.
bool fit_plane_tile(const PlaneProblem& of, const PlaneTile& tile, DepthwiseFit& fit) {
  const DepthwiseTensors& t = of.t;
  const CudaAxis& row = t.row;
  const CudaAxis& column = t.column;
  const int64_t cell_columns = count_plane_columns(of.element);
  const int64_t align = std::max<int64_t>(cell_columns, of.unit);
  const int64_t class_taps = column.most_class_taps();
  const int64_t segments = int64_t{column.lanes} * column.classes;
  const int64_t chunk = 16 / of.element;

  const int64_t staged_rows = row.count_span(row.lanes * tile.rows);
  const int64_t segment_pitch =
      round_up(tile.columns + round_up(class_taps - 1, kDepthwiseVector), align);
  // An odd multiple spreads rows of several groups over the banks.
  const int64_t line_pitch = (ceil_div(segments * segment_pitch, align) | 1) * align;
  const int64_t lines = tile.planes * staged_rows;
  const int64_t class_pitch = round_up(class_taps, kDepthwiseVector);
  const int64_t weight_pitch = column.classes * class_pitch;

  const int64_t column_tiles = ceil_div(of.columns, tile.columns);
  const int64_t row_tiles = ceil_div(of.rows, tile.rows);
  const int64_t plane_tiles = ceil_div(of.planes, tile.planes);
  const int64_t tile_rows = row.lanes * tile.rows;
  const int64_t image_results = int64_t{row.count} * column.count;
  const bool rows_apart = column_tiles > 1;
  const bool together = tile.planes > 1 && t.multiplier == 1 && t.target_c == image_results &&
                        (of.problem.N == 1 || t.target_n == t.channels * image_results);
  int64_t length = std::min<int64_t>(tile_rows, row.count) * column.count;
  int64_t spans = tile.planes;
  if (rows_apart) {
    length = std::min<int64_t>(tile.columns * column.lanes, column.count);
    spans = tile.planes * tile_rows;
  } else if (together) {
    length = tile.planes * image_results;
    spans = 1;
  }
  const int64_t span_pitch = round_up(length + chunk - 1, chunk);

  const int64_t weights_offset = round_up(lines * line_pitch * of.element, 16);
  const int64_t table_offset = weights_offset + tile.planes * row.taps * weight_pitch * 4;
  const int64_t results_offset =
      table_offset + round_up(tile.planes * static_cast<int64_t>(sizeof(PlaneEntry)), 16);
  const int64_t shared_bytes = results_offset + spans * span_pitch * of.element;
  if (shared_bytes > of.caps.shared_bytes_per_block) return false;
  const int64_t tiles = column_tiles * row_tiles * plane_tiles;
  const FilterShares shares(t.multiplier, tiles, of.caps.sm_count);
  const int64_t blocks = tiles * shares.shares;
  if (blocks >= int64_t{1} << 31) return false;

  PlaneParams& p = fit.plane;
  p.t = t;
  p.stage.rows = narrow(staged_rows);
  p.stage.line_pitch = narrow(line_pitch);
  p.tile_planes = narrow(tile.planes);
  p.tile_rows = narrow(tile.rows), p.tile_cols = narrow(tile.columns);
  p.column_shift = narrow(of.shift);
  p.planes = narrow(of.planes);
  const int64_t strips = tile.columns / cell_columns;
  const int64_t row_groups = tile.rows / kPlaneRows;
  p.cells = narrow(tile.planes * row.lanes * row_groups * column.lanes * strips);
  p.plane_pitch = narrow(staged_rows * line_pitch);
  p.row_step = narrow(row.period * line_pitch);
  p.row_lane_step = narrow(row.source_step * line_pitch);
  p.row_class_step = narrow(row.offset_step * line_pitch);
  p.segment_pitch = narrow(segment_pitch);
  p.class_step = narrow(column.lanes * segment_pitch);
  p.segment_columns = narrow(std::min(tile.columns, of.columns) + class_taps - 1);
  p.filters_per_share = narrow(shares.filters);
  p.class_taps_pitch = narrow(class_pitch), p.weight_pitch = narrow(weight_pitch);
  p.weight_step = narrow(row.classes * weight_pitch);
  p.plane_weights = narrow(row.taps * weight_pitch);
  p.weights_offset = narrow(weights_offset), p.table_offset = narrow(table_offset);
  p.results_offset = narrow(results_offset);
  p.span_pitch = narrow(span_pitch);
  p.rows_apart = rows_apart, p.planes_together = together;
  p.by_channels = FastDivmod(t.channels);
  p.by_shares = FastDivmod(shares.shares);
  p.by_column_tiles = FastDivmod(column_tiles), p.by_row_tiles = FastDivmod(row_tiles);
  p.by_strips = FastDivmod(strips), p.by_column_lanes = FastDivmod(column.lanes);
  p.by_row_groups = FastDivmod(row_groups), p.by_row_lanes = FastDivmod(row.lanes);
  p.by_classes = FastDivmod(column.classes);
  set_plane_unit(p, narrow(of.unit));

  // Costs of one block; see plane_kernel.cuh.
  const double taps = static_cast<double>(row.taps) * column.taps;
  const double chunk_taps = of.taps;
  const double chunks = column.classes * std::ceil(static_cast<double>(class_taps) / chunk_taps);
  const double cell_results = static_cast<double>(kPlaneRows * cell_columns);
  const double window =
      chunks * (row.taps + 3.0 * row.classes) *
      std::ceil((cell_columns - 1 + std::min<double>(chunk_taps, class_taps)) / 4);
  const double weight_loads = chunks * row.taps * std::ceil(chunk_taps / 4);
  const double convert = of.element == 2 ? kDepthwiseConvertIssue : 0;
  const double per_cell = kDepthwiseCellIssue + cell_results * (taps + kDepthwiseResultIssue) +
                          window * (1 + convert) + weight_loads;
  const double warps = static_cast<double>(ceil_div(p.cells, 32));
  const double element = static_cast<double>(of.element);
  const double filters = static_cast<double>(shares.filters);
  const double units = static_cast<double>(lines) * p.stage.units;
  const double results = static_cast<double>(spans * length);
  DepthwiseWork work{};
  work.blocks = static_cast<double>(blocks);
  work.issue = units / 32 * kDepthwiseUnitIssue +
               filters * (warps * per_cell + results / chunk / 32 * kDepthwiseChunkIssue +
                          tile.planes * taps / 32 * kDepthwiseWeightIssue);
  work.wavefronts = static_cast<double>(lines * line_pitch) * element / 128 +
                    filters * (warps * (window * element + weight_loads + cell_results) +
                               2 * results * element / 128);
  work.busy_warps = warps;
  work.staged_bytes = static_cast<double>(lines) * p.segment_columns * segments * element;
  work.result_bytes = filters * results * element * (rows_apart ? kRowsApartCost : 1);
  work.least_bytes = count_bytes(of.problem);
  work.shared_bytes = shared_bytes;
  work.most_blocks = plane_blocks_per_sm(of.element, of.taps);
  fit.blocks = blocks;
  fit.shared_bytes = shared_bytes;
  fit.plane_taps = of.taps;
  fit.microseconds = predict_depthwise_us(work, of.caps);
  return true;
}

constexpr double kSectorBytes = 32;
constexpr double kRunBytes = 16;        // overhead of a contiguous run, in bytes
constexpr int kChannelsLastBlocks = 5;  // resident ones, at most

struct ChannelsLastTile {
  int64_t rows, columns, channels;  // rows per lane
};

// The place of a tile of the channels_last kernel in shared memory.
struct ChannelsLastStage {
  ChannelsLastTile tile;
  int64_t staged_rows, staged_columns, line_pitch;
  int64_t weights_offset, shared_bytes;

  ChannelsLastStage(const DepthwiseTensors& t, int64_t element_bytes, const ChannelsLastTile& size)
      : tile(size),
        staged_rows(t.row.count_span(t.row.lanes * tile.rows)),
        staged_columns(t.column.count_span(tile.columns)),
        line_pitch(staged_columns * tile.channels),
        weights_offset(round_up(staged_rows * line_pitch * element_bytes, 16)),
        shared_bytes(weights_offset + int64_t{t.row.taps} * t.column.taps * tile.channels * 4) {}
};

// The same with its blocks.
struct ChannelsLastLayout : ChannelsLastStage {
  int64_t chunks, column_tiles, row_tiles;
  FilterShares shares;
  int64_t blocks;
  int64_t row_groups, cells;

  ChannelsLastLayout(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
                     const ChannelsLastStage& stage)
      : ChannelsLastStage(stage),
        chunks(ceil_div(t.channels, tile.channels)),
        column_tiles(ceil_div(t.column.count, tile.columns)),
        row_tiles(ceil_div(t.row.count, t.row.lanes * tile.rows)),
        shares(t.multiplier, problem.N * chunks * column_tiles * row_tiles, caps.sm_count),
        blocks(problem.N * chunks * column_tiles * row_tiles * shares.shares),
        row_groups(tile.rows / kChannelsLastRows),
        cells(tile.channels / kDepthwiseVector * tile.columns * row_groups * t.row.lanes) {}
};

// Memory traffic comes in contiguous runs: the tile's channels of one pixel, or a row of pixels if
// the tile has all channels. Returns the cost of a byte in them.
double find_run_cost(const ConvProblem& problem, const DepthwiseTensors& t, int64_t columns,
                     int64_t channels) {
  const double pixel =
      static_cast<double>(std::min<int64_t>(channels, t.channels) * size_of(problem.dtype));
  const bool whole_pixels = channels >= t.channels;
  const double run = whole_pixels ? pixel * static_cast<double>(columns) : pixel;
  return (std::ceil(run / kSectorBytes) * kSectorBytes + kRunBytes) / run;
}

// What the costs of all tiles share; cells: see channels_last_kernel.cuh.
struct ChannelsLastCosts {
  const DeviceCaps& caps;
  const DepthwiseTensors& t;
  int unit;
  double element_bytes, least_bytes;
  double images, filters;            // filters: of a channel
  double loads, products, per_cell;  // of a cell: loads, products and warp instructions

  ChannelsLastCosts(const ConvProblem& problem, const DeviceCaps& device,
                    const DepthwiseTensors& tensors, int unit_elements)
      : caps(device),
        t(tensors),
        unit(unit_elements),
        element_bytes(static_cast<double>(size_of(problem.dtype))),
        least_bytes(count_bytes(problem)),
        images(static_cast<double>(problem.N)),
        filters(t.multiplier) {
    loads = t.column.taps * (t.row.taps + (kChannelsLastRows - 1.0) * t.row.classes);
    products = static_cast<double>(t.row.taps) * t.column.taps;
    const double convert = element_bytes == 2 ? kDepthwiseConvertIssue : 0;
    per_cell = kDepthwiseCellIssue + kChannelsLastRows * 4 * (products + 1) +
               loads * (1 + convert) + products;
  }
};

double predict_channels_last(const ChannelsLastCosts& costs, const ChannelsLastLayout& layout,
                             double run_cost) {
  // Costs of one block.
  const CudaAxis& row = costs.t.row;
  const ChannelsLastTile& tile = layout.tile;
  const double bytes = costs.element_bytes;
  const double warps = static_cast<double>(ceil_div(layout.cells, 32));
  const double filters = static_cast<double>(layout.shares.filters);
  const double units = static_cast<double>(layout.staged_rows * (tile.channels / costs.unit) *
                                           layout.staged_columns);
  const double results = static_cast<double>(std::min<int64_t>(row.lanes * tile.rows, row.count) *
                                             tile.columns * tile.channels);
  DepthwiseWork work{};
  work.blocks = static_cast<double>(layout.blocks);
  work.issue = units / 32 * kDepthwiseUnitIssue +
               filters * (warps * costs.per_cell +
                          costs.products * tile.channels / 32 * kDepthwiseWeightIssue);
  work.wavefronts = filters * warps * (costs.loads * bytes + costs.products * 4);
  work.busy_warps = warps;
  work.staged_bytes =
      static_cast<double>(layout.staged_rows * layout.line_pitch) * bytes * run_cost;
  work.result_bytes = filters * results * bytes * run_cost;
  work.least_bytes = costs.least_bytes * run_cost;
  work.shared_bytes = layout.shared_bytes;
  work.most_blocks = kChannelsLastBlocks;
  return predict_depthwise_us(work, costs.caps);
}

// Tiles of all numbers of rows. If multiprocessors are never idle and no row is staged twice,
// memory and the instructions take so long.
struct ChannelsLastColumns {
  int64_t columns, channels;
  double run_cost, memory_us, compute_us;
  double bound_us = 0;
  int order = 0;  // of equal predictions, the lowest wins

  // A time that no tile is predicted to beat of which so many blocks are resident.
  double bound(double resident) const {
    const double rate = std::min(1.0, 4 * resident * kDepthwiseWarpIssue / kDepthwiseIssuePerCycle);
    return kBoundFactor *
           (kDepthwiseLaunchUs + std::max(memory_us, compute_us / rate) * (1 + 0.5 / resident));
  }
  bool operator<(const ChannelsLastColumns& other) const {
    return bound_us != other.bound_us ? bound_us < other.bound_us : order < other.order;
  }
};

ChannelsLastColumns make_columns(const ChannelsLastCosts& costs, int64_t columns, int64_t channels,
                                 double run_cost) {
  const DepthwiseTensors& t = costs.t;
  const double sms = std::max(costs.caps.sm_count, 1);
  const double memory =
      costs.least_bytes * run_cost / kDepthwiseBytesPerUs / (sms / kDepthwiseReferenceSms);
  const double tiles = costs.images * static_cast<double>(ceil_div(t.channels, channels) *
                                                          ceil_div(t.column.count, columns));
  const double cells = static_cast<double>(channels / kDepthwiseVector * columns) * t.row.count /
                       kChannelsLastRows * costs.filters;
  const int64_t staged_rows =
      t.row.count * std::min<int64_t>(t.row.source_step, t.row.count_span(1));
  const double units = static_cast<double>(channels / costs.unit * staged_rows) *
                       static_cast<double>(t.column.count_span(columns));
  const double issue = (cells * costs.per_cell + units * kDepthwiseUnitIssue) / 32;
  const double compute = tiles * issue / sms / kDepthwiseIssuePerCycle / kDepthwiseCyclesPerUs;
  return {columns, channels, run_cost, memory, compute};
}

ChannelsLastParams fill_channels_last(const DepthwiseTensors& t, int unit,
                                      const ChannelsLastLayout& layout) {
  const ChannelsLastTile& tile = layout.tile;
  ChannelsLastParams p{};
  p.t = t;
  p.stage.rows = narrow(layout.staged_rows);
  p.stage.line_pitch = narrow(layout.line_pitch);
  p.tile_rows = narrow(tile.rows), p.tile_cols = narrow(tile.columns);
  p.chunk = narrow(tile.channels);
  p.staged_cols = narrow(layout.staged_columns);
  p.filters_per_share = narrow(layout.shares.filters);
  p.weights_offset = narrow(layout.weights_offset);
  p.cells = narrow(layout.cells);
  p.vector_stores = t.multiplier == 1 && fit_unit(4, int64_t{t.channels}, t.target_w, t.target_h,
                                                  t.target_n) == kDepthwiseVector;
  p.by_shares = FastDivmod(layout.shares.shares);
  p.by_chunks = FastDivmod(layout.chunks);
  p.by_column_tiles = FastDivmod(layout.column_tiles);
  p.by_row_tiles = FastDivmod(layout.row_tiles);
  p.by_vectors = FastDivmod(tile.channels / kDepthwiseVector);
  p.by_columns = FastDivmod(tile.columns);
  p.by_row_groups = FastDivmod(layout.row_groups);
  set_channels_last_unit(p, unit);
  return p;
}

}  // namespace

void fit_planes(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  const PlaneProblem of = make_plane_problem(problem, caps, fit.plane.t);
  const int64_t align = std::max<int64_t>(count_plane_columns(of.element), of.unit);
  const DepthwiseTensors t = of.t;
  DepthwiseFit best;
  const auto consider = [&](const PlaneTile& tile) {
    DepthwiseFit candidate;
    candidate.layout = DepthwiseLayout::kPlanes;
    if (!fit_plane_tile(of, tile, candidate)) return false;
    if (best.blocks == 0 || candidate.microseconds < best.microseconds) best = candidate;
    return true;
  };
  // Rows are cut only if tiles of whole rows leave room for few resident blocks.
  for (int64_t cut = 1; cut <= of.columns; cut = next_size(cut)) {
    const int64_t columns = round_up(ceil_div(of.columns, cut), align);
    for (int64_t groups = 1;; groups = next_size(groups)) {
      const int64_t rows = std::min(groups * kPlaneRows, round_up(of.rows, kPlaneRows));
      const bool fits = consider({1, rows, columns});
      if (!fits || rows >= of.rows) break;
    }
    if (best.blocks > 0 && best.shared_bytes * 3 <= caps.shared_bytes_per_block) break;
  }
  if (best.blocks > 0 && best.plane.by_column_tiles.divisor == 1) {
    const int64_t rows = round_up(of.rows, kPlaneRows);
    const int64_t columns = round_up(of.columns, align);
    for (int64_t planes = 2; planes <= of.planes; planes = next_size(planes)) {
      if (!consider({planes, rows, columns})) break;
    }
  }
  best.plane.t = t;
  fit = best;
  fit.layout = DepthwiseLayout::kPlanes;
}

void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  const DepthwiseTensors t = fit.pixel.t;
  const int64_t element = size_of(problem.dtype);
  const int unit = fit_unit(element, int64_t{t.channels}, t.source_w, t.source_h,
                            problem.N > 1 ? t.source_n : 0);
  const int64_t align = std::max(kDepthwiseVector, unit);
  const int64_t most_rows = round_up(ceil_div(t.row.count, t.row.lanes), kChannelsLastRows);
  const int64_t most_channels = std::min<int64_t>(round_up(t.channels, align), 256);
  const ChannelsLastCosts costs(problem, caps, t, unit);
  std::vector<ChannelsLastColumns> sizes;
  for (int64_t cut = 1; cut <= t.column.count; cut = next_size(cut)) {
    const int64_t columns = ceil_div(t.column.count, cut);
    for (int64_t share = 1; share <= most_channels / align; share = next_size(share)) {
      const int64_t channels = round_up(ceil_div(most_channels, share), align);
      const double run_cost = find_run_cost(problem, t, columns, channels);
      ChannelsLastColumns size = make_columns(costs, columns, channels, run_cost);
      size.bound_us = size.bound(kChannelsLastBlocks);
      size.order = static_cast<int>(sizes.size());
      sizes.push_back(size);
    }
  }
  // The sizes with the smallest bounds come first, and end the search of the others.
  std::sort(sizes.begin(), sizes.end());
  std::optional<ChannelsLastLayout> best;
  int best_order = 0;
  fit = {};
  fit.layout = DepthwiseLayout::kPixels;
  for (const ChannelsLastColumns& size : sizes) {
    if (best && size.bound_us >= fit.microseconds) break;
    for (int64_t groups = 1;; groups = next_size(groups)) {
      const int64_t rows = std::min(groups * kChannelsLastRows, most_rows);
      const ChannelsLastStage stage(t, element, {rows, size.columns, size.channels});
      if (stage.shared_bytes > caps.shared_bytes_per_block) break;
      const int64_t fitting = caps.count_blocks_by_shared(stage.shared_bytes);
      const auto resident =
          static_cast<double>(std::clamp<int64_t>(fitting, 1, kChannelsLastBlocks));
      // Larger tiles have no more resident blocks.
      if (best && size.bound(resident) >= fit.microseconds) break;
      const ChannelsLastLayout layout(problem, caps, t, stage);
      if (layout.blocks >= int64_t{1} << 31) break;
      const double us = predict_channels_last(costs, layout, size.run_cost);
      const bool is_tie = best && us == fit.microseconds && size.order < best_order;
      if (!best || us < fit.microseconds || is_tie) {
        best = layout, best_order = size.order, fit.microseconds = us;
      }
      if (rows >= most_rows) break;
    }
  }
  fit.pixel.t = t;
  if (!best) return;
  fit.pixel = fill_channels_last(t, unit, *best);
  fit.blocks = best->blocks, fit.shared_bytes = best->shared_bytes;
}

PlaneParams make_plane_params(const ConvProblem& problem, const DepthwiseFit& fit,
                              const Buffers& buffers) {
  PlaneParams params = fit.plane;
  set_gather_buffers(params.t, problem, buffers);
  const int unit = fit_unit_to_address(params.t.source, size_of(problem.dtype), params.stage.unit);
  if (unit < params.stage.unit) set_plane_unit(params, unit);
  return params;
}

ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers) {
  ChannelsLastParams params = fit.pixel;
  set_gather_buffers(params.t, problem, buffers);
  const int unit = fit_unit_to_address(params.t.source, size_of(problem.dtype), params.stage.unit);
  if (unit < params.stage.unit) set_channels_last_unit(params, unit);
  params.vector_stores =
      params.vector_stores && is_aligned(params.t.target, problem.dtype, kDepthwiseVector);
  return params;
}

}  // namespace convx
