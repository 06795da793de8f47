#include "engines/cuda/direct/gather_fit.h"

#include <algorithm>
#include <utility>

namespace convx {
namespace {

AxisParams make_axis_params(const GatherAxis& axis, const StagedAxis& staged) {
  AxisParams params{};
  params.count = static_cast<int>(axis.count);
  params.target_start = static_cast<int>(axis.target_start);
  params.target_step = static_cast<int>(axis.target_step);
  params.source_step = static_cast<int>(axis.source_step);
  params.taps = static_cast<int>(axis.taps);
  params.tap0 = static_cast<int>(axis.tap0);
  params.tap_step = static_cast<int>(axis.tap_step);
  params.offset0 = static_cast<int>(axis.offset0);
  params.offset_step = static_cast<int>(axis.offset_step);
  params.lanes = static_cast<int>(axis.lanes);
  params.classes = static_cast<int>(axis.classes);
  params.period = static_cast<int>(axis.period);
  params.staged_classes = static_cast<int>(staged.classes);
  params.by_staged_classes = FastDivmod(params.staged_classes);
  params.by_lanes = FastDivmod(params.lanes);
  return params;
}

AxisParams make_row_params(const GatherAxis& axis, const GatherShape& shape) {
  const StagedAxis staged = stage_axis(axis, shape.row_taps);
  AxisParams params = make_axis_params(axis, staged);
  params.staged_length = static_cast<int>(shape.rows + staged.taps_per_class - 1);
  params.by_staged_length = FastDivmod(params.staged_length);
  return params;
}

AxisParams make_column_params(const GatherAxis& axis, const GatherShape& shape) {
  AxisParams params = make_axis_params(axis, stage_axis(axis, shape.column_taps));
  const StagedColumns staged =
      stage_columns(axis, shape.column_taps, shape.strips, shape.least_run);
  params.staged_length = static_cast<int>(staged.length);
  params.staged_strips = static_cast<int>(staged.strips);
  params.class_pitch = static_cast<int>(staged.class_pitch);
  params.strip_pitch = static_cast<int>(staged.strip_pitch);
  params.row_pitch = static_cast<int>(staged.row_pitch);
  params.runs = staged.runs;
  params.by_staged_length = FastDivmod(params.staged_length);
  params.by_staged_strips = FastDivmod(params.staged_strips);
  return params;
}

// Fills as many phases as one launch covers and returns their number.
template <typename MakeParams>
int set_phases(AxisParams* params, const std::vector<GatherAxis>& axes, int64_t first,
               const MakeParams& make_params) {
  const AxisParams& before = params[kPhasesPerLaunch - 1];
  int prefix = first == 0 ? 0 : before.tap_prefix + before.taps;
  const int64_t left = static_cast<int64_t>(axes.size()) - first;
  const int count = static_cast<int>(std::min<int64_t>(left, kPhasesPerLaunch));
  for (int i = 0; i < count; ++i) {
    params[i] = make_params(axes[first + i]);
    params[i].tap_prefix = prefix;
    prefix += params[i].taps;
  }
  return count;
}

}  // namespace

void set_row_phases(GatherParams& params, const GatherShape& shape, int64_t first) {
  params.row_phases = set_phases(params.row, shape.rows_axes, first, [&](const GatherAxis& axis) {
    return make_row_params(axis, shape);
  });
}

void set_column_phases(GatherParams& params, const GatherShape& shape, int64_t first) {
  params.column_phases =
      set_phases(params.column, shape.columns_axes, first,
                 [&](const GatherAxis& axis) { return make_column_params(axis, shape); });
}

GatherFit make_gather_fit(const ConvProblem& problem, GatherShape fitted, bool packed) {
  GatherFit fit{std::move(fitted), {}};
  const GatherShape& shape = fit.shape;
  const GatherView view = make_gather_view(problem);
  GatherParams& p = fit.params;
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  p.source_strides = {from.n, from.c, from.h, from.w};
  p.target_strides = {to.n, to.c, to.h, to.w};
  p.weight_group_stride = problem.filters_per_group() * problem.w_strides.n;
  p.weight_target_stride = view.weight_target_stride;
  p.weight_source_stride = view.weight_source_stride;
  p.weight_r_stride = problem.w_strides.h;
  p.weight_s_stride = problem.w_strides.w;
  p.images = static_cast<int>(problem.N);
  p.source_h = static_cast<int>(view.source_h);
  p.source_w = static_cast<int>(view.source_w);
  p.source_channels = static_cast<int>(view.source_channels);
  p.target_channels = static_cast<int>(view.target_channels);
  p.groups = static_cast<int>(problem.groups);
  for (const GatherAxis& axis : shape.columns_axes) {
    p.all_column_taps += static_cast<int>(axis.taps);
  }
  p.strips = static_cast<int>(shape.strips);
  p.rows = static_cast<int>(shape.rows);
  p.tile_images = static_cast<int>(shape.images);
  p.channels = static_cast<int>(shape.channels);
  p.row_taps = static_cast<int>(shape.row_taps);
  p.column_taps = static_cast<int>(shape.column_taps);
  p.filter_tiles = static_cast<int>(shape.filter_tiles);
  p.strip_tiles = static_cast<int>(shape.strip_tiles);
  p.row_tiles = static_cast<int>(shape.row_tiles);
  p.stage_elements = static_cast<int>(shape.stage_elements);
  p.weight_offset = static_cast<int>(shape.source_elements);
  p.packed = packed;
  p.channel_fastest = is_channel_fastest(from);
  p.table_offset = static_cast<int>(shape.table_offset);
  p.turn_offset = static_cast<int>(shape.turn_offset);
  p.chain_limit = static_cast<int>(shape.chain_limit);
  p.by_strips = FastDivmod(shape.strips);
  p.by_rows = FastDivmod(shape.rows);
  set_row_phases(p, shape, 0);
  set_column_phases(p, shape, 0);
  return fit;
}

}  // namespace convx
