#include "engines/cuda/grouped/grouped_planning.h"

#include "core/arithmetic.h"
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
  set_grouped_tensors(problem, view, p);
  p.images = narrow(problem.N), p.groups = narrow(problem.groups);
  p.source_c = view.source_strides.c, p.target_c = view.target_strides.c;
  p.source_group = p.source_channels * p.source_c;
  p.row = fit_axis(view.rows[0]);
  p.column = fit_axis(view.columns[0]);
  p.weight_first = narrow(p.row.tap0 * problem.w_strides.h + p.column.tap0 * problem.w_strides.w);
  p.weight_row = narrow(p.row.tap_step * problem.w_strides.h);
  p.weight_column = narrow(p.column.tap_step * problem.w_strides.w);
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
