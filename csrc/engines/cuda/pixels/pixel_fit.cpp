#include "engines/cuda/pixels/pixel_fit.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace convx {

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape) {
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  PixelParams p{};
  static_cast<TensorParams&>(p) = make_tensor_params(problem, rows, columns);
  p.plane = narrow(rows.count * columns.count);
  p.pixels = narrow(problem.N * p.plane);

  const int64_t filter_tiles = problem.groups * shape.filter_tiles;
  p.window_step = shape.window_step, p.per_image = shape.per_image;
  p.tiles = narrow(shape.pixel_tiles * filter_tiles * shape.splits);
  p.filter_tiles = shape.filter_tiles, p.tile_filters = shape.filters;
  p.splits = shape.splits;
  p.partial_image = problem.groups * p.group_targets * int64_t{p.plane};
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
    p.copy_source = shape.vector * p.source_c;
  } else {
    p.entry_elements = shape.vector;
    p.entry_copies = shape.chunk_channels;
    p.copy_channels = 1;
    p.copy_shared = shape.channel_pitch;
    p.copy_source = p.source_c;
  }
  p.paired = shape.paired, p.row_pairs = shape.row_pairs;
  p.pair_lead = narrow(floor_mod(columns.offset0, 2));
  p.folded = shape.folded, p.channels = shape.channels;
  p.chunk_channels = shape.chunk_channels, p.chunks = shape.chunks;
  p.steps = shape.steps, p.stage_steps = shape.stage_steps, p.stage_chunks = shape.stage_chunks;
  p.source_stages = shape.source_stages, p.filter_stages = shape.filter_stages;
  p.resident = shape.resident;
  p.source_stage_bytes = shape.source_stage_bytes;
  p.step_bytes = shape.step_bytes();
  p.filter_stage_bytes = shape.stage_steps * p.step_bytes;
  p.staging_offset = shape.staging_offset, p.source_offset = shape.source_offset;
  p.filter_offset = shape.filter_offset;

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

PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                              int64_t offset) {
  PixelParams p = fit.params;
  buffers.workspace = static_cast<char*>(buffers.workspace) + offset;
  const int64_t element = size_of(problem.dtype);
  set_tensors(p, problem, fit.shape.rows_axis, fit.shape.columns_axis, buffers,
              fit.shape.packed_bytes, fit.shape.splits > 1);
  // The caller's tensors may start at any address.
  while (reinterpret_cast<uintptr_t>(p.source) %
         static_cast<uintptr_t>(p.copy_elements * element)) {
    p.copy_elements /= 2;
  }
  return p;
}

}  // namespace convx
