#include "engines/cuda/lines/window_fit.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// The number of stages, about 16 taps, that the first warpgroup runs ahead of the second: enough to
// stage its accumulators while the other one multiplies. It must be less than the rings hold,
// because no stage is released before the second warpgroup has started.
int fit_lead(const WindowShape& shape) {
  const int64_t per_chunk = ceil_div(shape.taps(), shape.stage_taps);
  const int64_t per_tile = per_chunk * (shape.chunks / shape.splits);
  const int64_t filters = shape.resident ? per_tile : shape.filter_stages - 1;
  return static_cast<int>(std::min(
      {ceil_div(16, shape.stage_taps), filters, per_tile, shape.source_stages * per_chunk - 1}));
}

}  // namespace

WindowFit make_window_fit(const ConvProblem& problem, WindowShape shape) {
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  WindowParams p{};
  static_cast<TensorParams&>(p) = make_tensor_params(problem, rows, columns);
  p.lines = shape.lines, p.line_positions = shape.line_positions;
  p.slabs = narrow(problem.groups * shape.chunks);
  p.pitch = shape.pitch, p.rows = shape.rows, p.strips = shape.strips;
  p.strip_columns = shape.strip_columns;
  p.row_base = shape.row_base, p.column_base = shape.column_base;
  p.window_step = shape.window_step, p.second_window = shape.second_window;
  p.overlap = shape.window_step < shape.columns;
  p.second_offset = shape.second_offset;
  p.pair_rows = shape.pair_rows, p.column_windows = shape.column_windows;
  p.pairs_per_image = shape.pairs_per_image;
  p.filter_groups = shape.filter_groups, p.filter_tiles = shape.filter_tiles;
  p.splits = shape.splits;
  const int64_t filter_tiles = problem.groups * shape.filter_tiles;
  p.tiles = narrow(shape.pixel_tiles * filter_tiles * shape.splits);
  p.segments = narrow(shape.segments.size()), p.segment_length = shape.segment_length;
  p.taps = shape.taps(), p.channels = shape.channels, p.chunks = shape.chunks;
  p.chunk_channels = shape.chunk_channels, p.lane_bytes = shape.lane_bytes;
  p.stage_taps = shape.stage_taps, p.chain_steps = shape.chain_steps;
  p.source_stages = shape.source_stages, p.filter_stages = shape.filter_stages;
  p.resident = shape.resident;
  p.table_offset = shape.table_offset, p.staging_offset = shape.staging_offset;
  p.source_offset = shape.source_offset, p.filter_offset = shape.filter_offset;
  p.plane_bytes = shape.plane_bytes;
  p.box_columns = shape.box_columns, p.box_rows = shape.box_rows, p.boxes = shape.boxes;
  p.whole_rows = shape.box_columns > 0 && !shape.by_rows;
  p.walks = shape.walks(), p.tile_step = shape.tile_step(), p.reach = shape.reach;
  p.ring_positions = shape.ring_positions, p.stretch = shape.stretch;
  p.raw_offset = shape.raw_offset, p.raw_stretches = shape.raw_stretches;
  if (shape.splits > 1) p.plane_contiguous = true;  // partial sums have contiguous planes
  p.lead = fit_lead(shape);

  p.by_pitch = FastDivmod(shape.pitch), p.by_rows = FastDivmod(shape.rows);
  p.by_strips = FastDivmod(shape.strips);
  p.by_splits = FastDivmod(shape.splits);
  p.by_filter_tiles_all = FastDivmod(filter_tiles);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_column_windows = FastDivmod(shape.column_windows);
  p.by_pairs_per_image = FastDivmod(shape.pairs_per_image);
  p.by_box = FastDivmod(std::max(1, shape.box_rows * shape.pitch));
  p.by_pair_rows = FastDivmod(std::max(1, shape.pair_rows));
  std::copy(shape.tap_positions.begin(), shape.tap_positions.end(), p.tap_positions);
  std::copy(shape.segments.begin(), shape.segments.end(), p.segment);

  return {std::move(shape), p};
}

WindowParams make_window_params(const ConvProblem& problem, const WindowFit& fit, Buffers buffers,
                                int64_t offset) {
  WindowParams p = fit.params;
  buffers.workspace = static_cast<char*>(buffers.workspace) + offset;
  const int64_t element = size_of(problem.dtype);
  const bool split = fit.shape.splits > 1;
  set_tensors(p, problem, fit.shape.rows_axis, fit.shape.columns_axis, buffers,
              fit.shape.packed_bytes + fit.shape.line_bytes, split);
  p.lines_memory = static_cast<char*>(buffers.workspace) + fit.shape.packed_bytes;
  const auto is_multiple = [&](int64_t of, auto... elements) {
    return ((elements * element % of == 0) && ...);
  };
  p.wide_channels = p.source_c == 1 && is_unit_aligned(p.source) &&
                    is_multiple(16, p.source_n, p.source_h, p.source_w, p.group_sources);
  p.wide_target = !split && p.target_c == 1 && is_unit_aligned(p.target) &&
                  is_multiple(16, p.target_n, p.target_h, p.target_w, p.group_targets);
  p.aligned_rows = p.source_w == 1 && is_unit_aligned(p.source) &&
                   is_multiple(16, p.source_n, p.source_c, p.source_h, p.source_width);
  p.boxed_target = fit.shape.stores_boxes && p.wide_target;
  // Pairs of pixels are aligned if the address and the strides are even. Partial sums are dense.
  const bool even_target = split || (is_multiple(2 * element, p.target_n, p.target_c) &&
                                     is_aligned(p.target, problem.dtype, 2));
  p.even_runs = p.plane_contiguous && p.strips == 1 && p.target_width % 2 == 0 &&
                p.pitch % 2 == 0 && p.pitch >= 8 && p.rows * p.pitch >= kMinRunPositions &&
                even_target;
  const int stored = split ? 4 : static_cast<int>(element);
  // A window of a pair of rows has no gaps between rows.
  const int64_t sector =
      sector_positions(stored, p.target_width, p.pair_rows > 0 ? p.target_width : p.pitch);
  p.carries = fit.shape.pace == Pace::kCarry && p.even_runs;
  p.cut_sectors = p.even_runs && sector <= shared_columns(stored);
  return p;
}

}  // namespace convx
