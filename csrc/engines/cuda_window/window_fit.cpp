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
  const GatherView view = make_gather_view(problem);
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  WindowParams p{};
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const Strides& source = view.source_strides;
  const Strides& target = view.target_strides;
  p.source_n = source.n, p.source_c = source.c, p.source_h = source.h, p.source_w = source.w;
  p.target_n = target.n, p.target_c = target.c;
  p.target_h = target.h * rows.target_step, p.target_w = target.w * columns.target_step;
  p.filter_target = view.weight_target_stride;
  p.filter_source = view.weight_source_stride;
  p.filter_r = problem.w_strides.h, p.filter_s = problem.w_strides.w;
  p.filter_group = problem.filters_per_group() * problem.w_strides.n;

  p.images = narrow(problem.N);
  p.source_height = narrow(view.source_h), p.source_width = narrow(view.source_w);
  p.target_height = narrow(rows.count), p.target_width = narrow(columns.count);
  p.group_sources = narrow(view.source_channels);
  p.group_targets = narrow(view.target_channels);
  p.tap_rows = narrow(rows.taps), p.tap_columns = narrow(columns.taps);
  p.tap_r0 = narrow(rows.tap0), p.tap_r_step = narrow(rows.tap_step);
  p.tap_s0 = narrow(columns.tap0), p.tap_s_step = narrow(columns.tap_step);
  p.offset_h0 = narrow(rows.offset0), p.offset_h_step = narrow(rows.offset_step);
  p.offset_w0 = narrow(columns.offset0), p.offset_w_step = narrow(columns.offset_step);
  p.source_step_h = narrow(rows.source_step), p.source_step_w = narrow(columns.source_step);

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
  p.partial_stride = problem.N * problem.groups * view.target_channels * rows.count * columns.count;
  const bool dense_rows = p.target_w == 1 && p.target_h == columns.count;
  p.plane_contiguous = shape.splits > 1 || dense_rows;
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
  p.source_end = (problem.N - 1) * source.n +
                 (view.source_channels * problem.groups - 1) * source.c +
                 (view.source_h - 1) * source.h + (view.source_w - 1) * source.w + 1;
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
  const bool forward = problem.pass == Pass::kForward;
  const Strides& to = forward ? problem.y_strides : problem.x_strides;
  const int64_t element = size_of(problem.dtype);
  p.source = forward ? buffers.x : buffers.y;
  p.filters = buffers.w;
  p.packed = buffers.workspace;
  p.bias = forward && problem.has_bias ? buffers.bias : nullptr;
  p.target = static_cast<char*>(forward ? buffers.y : buffers.x) +
             element * (fit.shape.rows_axis.target_start * to.h +
                        fit.shape.columns_axis.target_start * to.w);
  const auto address = reinterpret_cast<uintptr_t>(p.source);
  p.source_units = reinterpret_cast<const void*>(address & ~uintptr_t{15});
  p.source_shift = static_cast<int>(address % 16 / static_cast<uintptr_t>(element));
  p.source_end += p.source_shift;
  if (fit.shape.splits > 1) {
    p.partials =
        reinterpret_cast<float*>(static_cast<char*>(buffers.workspace) + fit.shape.packed_bytes);
  }
  return p;
}

}  // namespace convx
