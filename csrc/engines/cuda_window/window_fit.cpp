#include "engines/cuda_window/window_fit.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace convx {
namespace {

// Stages the first warpgroup runs ahead of the second: enough to store while the other multiplies,
// and no more than the rings hold, since the second gives nothing back until it has started.
int fit_lead(const WindowShape& shape) {
  const int64_t per_chunk = ceil_div(shape.taps(), shape.stage_taps);
  const int64_t per_tile = per_chunk * (shape.chunks / shape.splits);
  const int64_t filters = shape.resident ? per_tile : shape.filter_stages - 1;
  return static_cast<int>(
      std::min({int64_t{4}, filters, per_tile, shape.source_stages * per_chunk - 1}));
}

}  // namespace

WindowFit make_window_fit(const ConvProblem& problem, WindowShape shape) {
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  WindowParams p{};
  static_cast<TensorParams&>(p) = make_tensor_params(problem, rows, columns);
  p.pitch = shape.pitch, p.rows = shape.rows, p.strips = shape.strips;
  p.strip_columns = shape.strip_columns;
  p.row_base = shape.row_base, p.column_base = shape.column_base;
  p.window_step = shape.window_step, p.second_window = shape.second_window;
  p.second_offset = shape.second_offset;
  p.pair_rows = shape.pair_rows, p.column_windows = shape.column_windows;
  p.pairs_per_image = shape.pairs_per_image;
  p.filter_groups = shape.filter_groups, p.filter_tiles = shape.filter_tiles;
  p.splits = shape.splits;
  const int64_t filter_tiles = problem.groups * shape.filter_tiles;
  p.tiles = narrow(shape.pixel_tiles * filter_tiles * shape.splits);
  p.segments = narrow(shape.segments.size()), p.segment_length = shape.segment_length;
  p.positions = shape.positions();
  p.taps = shape.taps(), p.channels = shape.channels, p.chunks = shape.chunks;
  p.chunk_channels = shape.chunk_channels, p.lane_bytes = shape.lane_bytes;
  p.stage_taps = shape.stage_taps;
  p.source_stages = shape.source_stages, p.filter_stages = shape.filter_stages;
  p.resident = shape.resident;
  p.table_offset = shape.table_offset, p.staging_offset = shape.staging_offset;
  p.source_offset = shape.source_offset, p.filter_offset = shape.filter_offset;
  p.plane_bytes = shape.plane_bytes;
  if (shape.splits > 1) p.plane_contiguous = true;  // the parts' planes are
  p.lead = fit_lead(shape);

  p.by_pitch = FastDivmod(shape.pitch), p.by_rows = FastDivmod(shape.rows);
  p.by_strips = FastDivmod(shape.strips);
  p.by_segment_length = FastDivmod(shape.segment_length);
  p.load = shape.load;
  p.spans = shape.spans, p.span_images = shape.span_images;
  p.by_kernel_rows = shape.by_rows, p.raw_pitch = shape.raw_pitch;
  p.raw_channels = shape.raw_channels();
  p.raw_stages = shape.raw_stages, p.raw_offset = shape.raw_offset;
  p.column_phase_first = shape.segments.front().column_phase;
  for (const WindowSegment& segment : shape.segments) {
    p.row_phase_last = std::max(p.row_phase_last, segment.row_phase);
    p.column_phase_last = std::max(p.column_phase_last, segment.column_phase);
  }
  p.source_end = (problem.N - 1) * p.source_n +
                 (p.group_sources * problem.groups - 1) * p.source_c +
                 (p.source_height - 1) * p.source_h + (p.source_width - 1) * p.source_w + 1;
  p.by_images = FastDivmod(int64_t{shape.strips} * shape.rows * shape.pitch);
  p.by_positions = FastDivmod(shape.positions());
  p.by_splits = FastDivmod(shape.splits);
  p.by_filter_tiles_all = FastDivmod(filter_tiles);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_column_windows = FastDivmod(shape.column_windows);
  p.by_pairs_per_image = FastDivmod(shape.pairs_per_image);
  p.by_pair_rows = FastDivmod(std::max(1, shape.pair_rows));
  std::copy(shape.tap_positions.begin(), shape.tap_positions.end(), p.tap_positions);
  std::copy(shape.segments.begin(), shape.segments.end(), p.segment);

  return {std::move(shape), p};
}

WindowParams make_window_params(const ConvProblem& problem, const WindowFit& fit,
                                const Buffers& buffers) {
  WindowParams p = fit.params;
  const int64_t element = size_of(problem.dtype);
  set_tensors(p, problem, fit.shape.rows_axis, fit.shape.columns_axis, buffers,
              fit.shape.packed_bytes, fit.shape.splits > 1);
  const auto address = reinterpret_cast<uintptr_t>(p.source);
  p.source_units = reinterpret_cast<const void*>(address & ~uintptr_t{15});
  p.source_shift = static_cast<int>(address % 16 / static_cast<uintptr_t>(element));
  p.source_end += p.source_shift;
  return p;
}

}  // namespace convx
