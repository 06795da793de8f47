#include "engines/cuda_boxes/boxes_params.h"

#include <algorithm>
#include <utility>

#include "engines/cuda_staging.h"

namespace convx {

BoxesFit make_boxes_fit(const ConvProblem& problem, BoxesShape shape) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  BoxesParams p{};
  static_cast<TensorParams&>(p) = make_tensor_params(problem, shape.rows_axis, shape.columns_axis);
  p.tiles = narrow(shape.tiles() * shape.parts);
  p.parts = shape.parts, p.part_chunks = narrow(shape.part_chunks());
  p.by_parts = FastDivmod(shape.parts);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_column_tiles = FastDivmod(shape.column_tiles);
  p.by_row_tiles = FastDivmod(shape.row_tiles);
  p.by_tile_kinds = FastDivmod(shape.tile_kinds());
  p.by_group_targets = FastDivmod(p.group_targets);
  p.by_box_columns = FastDivmod(shape.box.columns);
  p.by_box_rows = FastDivmod(shape.box.rows);
  p.box_columns = shape.box.columns, p.box_rows = shape.box.rows, p.box_images = shape.box.images;
  p.plane = narrow(shape.rows_axis.count * shape.columns_axis.count);
  const int64_t plane_lines = ceil_div(p.plane, line_pixels(shape.math));
  p.lines = shape.form == BoxForm::kLines ? narrow(problem.N * plane_lines) : 0;
  p.by_plane_lines = FastDivmod(plane_lines);
  p.chunks = shape.chunks;
  p.stages = shape.stages, p.stage_bytes = shape.stage_bytes;
  p.pixel_bytes = shape.pixel_bytes;
  p.resident = shape.resident;
  p.filters_offset = shape.filters_offset, p.ring_offset = shape.ring_offset;
  p.packed_channels = narrow(shape.packed_channels);
  constexpr int kPackedTogether = 32;  // with more, few blocks would each take long
  p.pack_taps = std::min(p.tap_rows * p.tap_columns, kPackedTogether);
  p.pack_filters = kPackedTogether / p.pack_taps;
  p.by_pack_filters = FastDivmod(p.pack_filters);
  p.by_pack_taps = FastDivmod(p.pack_taps);
  p.by_tap_columns = FastDivmod(p.tap_columns);
  return {std::move(shape), p};
}

BoxesParams make_boxes_params(const ConvProblem& problem, const BoxesFit& fit,
                              const Buffers& buffers) {
  const BoxesShape& shape = fit.shape;
  BoxesParams p = fit.params;
  set_tensors(p, problem, shape.rows_axis, shape.columns_axis, buffers, 0, false);
  if (shape.in_turn) {
    p.taken = reinterpret_cast<int*>(static_cast<char*>(buffers.workspace) + shape.taken_offset);
  }
  if (shape.parts > 1) {
    p.sums = reinterpret_cast<float*>(static_cast<char*>(buffers.workspace) + shape.sums_offset);
  }
  // The caller's tensors may start at any address.
  p.boxed_source = is_unit_aligned(p.source);
  p.boxed_target = shape.boxed_target && is_unit_aligned(p.target);
  p.dense_target = shape.dense_target && is_unit_aligned(p.target);
  p.row_piece = fit_unit_to_address(p.target, size_of(problem.dtype), shape.row_piece);
  p.filters_in_place = shape.filters_in_place && is_unit_aligned(p.filters);
  return p;
}

}  // namespace convx
