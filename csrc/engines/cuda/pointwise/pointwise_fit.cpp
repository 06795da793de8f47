#include "engines/cuda/pointwise/pointwise_fit.h"

#include <utility>

#include "planning/staged_rows.h"

namespace convx {

PointwiseFit make_pointwise_fit(const ConvProblem& problem, PointwiseShape shape) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  PointwiseParams p{};
  static_cast<TensorParams&>(p) = make_tensor_params(problem, shape.rows_axis, shape.columns_axis);
  p.plane = narrow(shape.rows_axis.count * shape.columns_axis.count);
  p.pixels = narrow(problem.N * p.plane);
  p.tiles = narrow(shape.tiles);
  p.tile_filters = shape.filters;
  p.filter_tiles = shape.filter_tiles;
  p.all_filter_tiles = narrow(problem.groups * shape.filter_tiles);
  p.channel_rows = shape.channel_rows;
  p.filter_part_bytes = shape.filter_part_bytes();
  p.chunks = shape.chunks, p.stages = shape.stages, p.raw_stages = shape.raw_stages;
  p.whole_rows = shape.whole_rows;
  p.staging_pitch = staging_pitch(shape.math, shape.whole_rows);
  p.filter_offset = shape.filter_offset, p.ring_offset = shape.ring_offset;
  p.raw_offset = shape.raw_offset;
  p.by_plane = FastDivmod(p.plane);
  p.by_target_width = FastDivmod(p.target_width);
  return {std::move(shape), p};
}

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers) {
  const PointwiseShape& shape = fit.shape;
  PointwiseParams p = fit.params;
  set_tensors(p, problem, shape.rows_axis, shape.columns_axis, buffers, 0, false);
  // The caller's tensors may start at any address.
  p.aligned_source = shape.aligned_source && is_unit_aligned(p.source);
  p.aligned_target = shape.aligned_target && is_unit_aligned(p.target);
  p.aligned_filters = shape.aligned_filters && is_unit_aligned(p.filters);
  return p;
}

}  // namespace convx
