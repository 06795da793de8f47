#include "engines/cuda/grouped/grouped_task.h"

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "planning/gather_axis.h"

namespace convx {
namespace {

// Lanes would separate neighbouring outputs. If taps slide only with lanes, each tap is its own
// class.
CudaAxis fit_axis(const AxisPhase& phase) {
  const GatherAxis sliding = make_gather_axis(phase, true);
  return make_cuda_axis(sliding.lanes == 1 ? sliding : make_gather_axis(phase, false));
}

int64_t count_column_tiles(const GroupedTask& p) { return ceil_div(p.column.count, p.tile_cols); }
int64_t count_row_tiles(const GroupedTask& p) { return ceil_div(p.row.count, p.tile_rows); }
int64_t count_group_tiles(const GroupedTask& p) { return ceil_div(p.groups, p.tile_groups); }

}  // namespace

GroupedTask make_grouped_task(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  GroupedTask p{};
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  p.source_n = from.n, p.source_c = from.c, p.source_h = from.h;
  p.target_n = to.n, p.target_c = to.c, p.target_h = to.h;
  p.weight_group = problem.filters_per_group() * problem.w_strides.n;
  p.source_channels = narrow(view.source_channels);
  p.target_channels = narrow(view.target_channels);
  p.source_height = narrow(view.source_h), p.source_width = narrow(view.source_w);
  p.row = fit_axis(view.rows[0]);
  p.column = fit_axis(view.columns[0]);
  p.weight_target = narrow(view.weight_target_stride);
  p.weight_source = narrow(view.weight_source_stride);
  p.weight_first = narrow(p.row.tap0 * problem.w_strides.h + p.column.tap0 * problem.w_strides.w);
  p.weight_row = narrow(p.row.tap_step * problem.w_strides.h);
  p.weight_column = narrow(p.column.tap_step * problem.w_strides.w);
  p.images = narrow(problem.N), p.groups = narrow(problem.groups);
  p.source_group = p.source_channels * p.source_c;
  return p;
}

int64_t count_grouped_tiles(const GroupedTask& p) {
  return count_column_tiles(p) * count_row_tiles(p) * count_group_tiles(p);
}
void set_tile_divisors(GroupedTask& p) {
  p.by_column_tiles = FastDivmod(count_column_tiles(p));
  p.by_row_tiles = FastDivmod(count_row_tiles(p));
  p.by_group_tiles = FastDivmod(count_group_tiles(p));
}

}  // namespace convx
