// The tiles of plane_kernel.cuh.
#include <algorithm>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "core/gather_view.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_geometry.h"

namespace convx {
namespace {

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

// Sets the width of the copies to `unit` elements.
void set_plane_unit(PlaneParams& p, int unit) {
  const int64_t units = ceil_div(p.segment_columns, unit);
  set_stage_units(p.stage, units * p.t.column.lanes * p.t.column.classes, unit, kDepthwiseThreads);
  p.by_segment_units = FastDivmod(units);
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

PlaneParams make_plane_params(const ConvProblem& problem, const DepthwiseFit& fit,
                              const Buffers& buffers) {
  PlaneParams params = fit.plane;
  set_gather_buffers(params.t, problem, buffers);
  const int unit = fit_unit_to_address(params.t.source, size_of(problem.dtype), params.stage.unit);
  if (unit < params.stage.unit) set_plane_unit(params, unit);
  return params;
}

}  // namespace convx
