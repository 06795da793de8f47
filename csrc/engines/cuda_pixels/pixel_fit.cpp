#include "engines/cuda_pixels/pixel_fit.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "core/gather_view.h"

namespace convx {

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape) {
  const GatherView view = make_gather_view(problem);
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  PixelParams p{};
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
  p.plane = narrow(rows.count * columns.count);
  p.pixels = narrow(problem.N * p.plane);
  p.group_sources = narrow(view.source_channels);
  p.group_targets = narrow(view.target_channels);
  p.tap_rows = narrow(rows.taps), p.tap_columns = narrow(columns.taps);
  p.tap_r0 = narrow(rows.tap0), p.tap_r_step = narrow(rows.tap_step);
  p.tap_s0 = narrow(columns.tap0), p.tap_s_step = narrow(columns.tap_step);
  p.offset_h0 = narrow(rows.offset0), p.offset_h_step = narrow(rows.offset_step);
  p.offset_w0 = narrow(columns.offset0), p.offset_w_step = narrow(columns.offset_step);
  p.source_step_h = narrow(rows.source_step), p.source_step_w = narrow(columns.source_step);

  const int64_t filter_tiles = problem.groups * shape.filter_tiles;
  p.window_step = shape.window_step, p.per_image = shape.per_image;
  p.tiles = narrow(shape.pixel_tiles * filter_tiles * shape.splits);
  p.filter_tiles = shape.filter_tiles, p.tile_filters = shape.filters;
  p.splits = shape.splits;
  p.bands = shape.bands, p.channels_last = shape.channels_last;
  p.span = shape.span, p.row_pitch = shape.row_pitch;
  p.entries = shape.entries();
  p.image_rows = shape.image_rows, p.segment = shape.segment;
  p.position_pitch = shape.position_pitch, p.channel_pitch = shape.channel_pitch;
  p.vector = shape.channels_last ? 1 : shape.vector;
  p.run = p.copy_elements = shape.vector;
  if (shape.channels_last) {
    p.entry_elements = shape.position_pitch;
    p.entry_copies = shape.chunk_channels / shape.vector;
    p.copy_channels = p.copy_shared = shape.vector;
    p.copy_source = shape.vector * source.c;
  } else {
    p.entry_elements = shape.vector;
    p.entry_copies = shape.chunk_channels;
    p.copy_channels = 1;
    p.copy_shared = shape.channel_pitch;
    p.copy_source = source.c;
  }
  p.folded = shape.folded, p.channels = shape.channels;
  p.chunk_channels = shape.chunk_channels, p.chunks = shape.chunks;
  p.steps = shape.steps, p.stage_steps = shape.stage_steps;
  p.source_stages = shape.source_stages, p.filter_stages = shape.filter_stages;
  p.resident = shape.resident;
  p.source_stage_bytes = shape.source_stage_bytes;
  p.step_bytes = shape.step_bytes();
  p.filter_stage_bytes = shape.stage_steps * p.step_bytes;
  p.staging_offset = shape.staging_offset, p.source_offset = shape.source_offset;
  p.filter_offset = shape.filter_offset;
  p.partial_stride = problem.N * problem.groups * view.target_channels * p.plane;
  p.plane_contiguous = p.target_w == 1 && p.target_h == columns.count;

  p.by_target_width = FastDivmod(columns.count), p.by_target_height = FastDivmod(rows.count);
  p.by_plane = FastDivmod(p.plane);
  p.by_row_pitch = FastDivmod(shape.row_pitch);
  p.by_image_rows = FastDivmod(shape.image_rows);
  p.by_segment = FastDivmod(shape.segment);
  p.by_splits = FastDivmod(shape.splits);
  p.by_filter_tiles_all = FastDivmod(filter_tiles);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_image_tiles =
      FastDivmod(std::max<int64_t>(1, problem.N == 0 ? 1 : shape.pixel_tiles / problem.N));
  return {std::move(shape), p};
}

PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit,
                              const Buffers& buffers) {
  PixelParams p = fit.params;
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
  // A tensor may start anywhere.
  while (reinterpret_cast<uintptr_t>(p.source) %
         static_cast<uintptr_t>(p.copy_elements * element)) {
    p.copy_elements /= 2;
  }
  if (fit.shape.splits > 1) {
    p.partials =
        reinterpret_cast<float*>(static_cast<char*>(buffers.workspace) + fit.shape.packed_bytes);
  }
  return p;
}

}  // namespace convx
