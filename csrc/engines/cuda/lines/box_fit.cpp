#include "engines/cuda/lines/window_parts.h"

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "planning/boxed_tensor.h"

namespace convx {
namespace {

constexpr int kBoxPositions = 64;   // the overhead of a box, in positions
constexpr int kMaxBoxes = 24;       // boxes per tile
constexpr int kBoxAlignment = 128;  // bytes; alignment of a box in shared memory

// The number of boxes, of `rows` whole rows of the line each, that a tile touches at most.
int count_boxes(const WindowShape& shape, int64_t rows) {
  const int64_t positions = rows * shape.pitch;
  return static_cast<int>(ceil_div(positions - 1 + shape.reach, positions));
}

// The box height with the lowest cost: the positions of a tile's boxes and the boxes' overhead,
// times the growth of an image whose rows are rounded up to whole boxes.
int find_box_rows(const WindowShape& shape) {
  int best = 1;
  double least = 0;
  for (int rows = 1; rows <= shape.rows && rows <= kMaxBoxSpan; ++rows) {
    // Boxes cover the reach, and all positions of one more row but one.
    if (least > 0 && rows * shape.pitch - 1.0 + shape.reach >= least) break;
    const int boxes = count_boxes(shape, rows);
    const double image = static_cast<double>(round_up(shape.rows, rows)) / shape.rows;
    const double cost = image * (boxes * (rows * shape.pitch + kBoxPositions));
    if (least == 0 || cost < least) least = cost, best = rows;
  }
  return best;
}

}  // namespace

bool may_box_source(const ConvProblem& problem, TensorMath math) {
  if (!may_box(math)) return false;
  const GatherTensors view = make_gather_tensors(problem);
  return has_boxes(view.source_strides, view.source_channels, size_of(problem.dtype));
}

bool lay_out_boxes(const ConvProblem& problem, WindowShape& shape) {
  if (!may_box_source(problem, shape.math) || shape.strips > 1) return false;
  // Otherwise the last chunk of a group would have the next group's channels in place of zeros.
  const bool whole_chunks = problem.groups == 1 || shape.channels % shape.chunk_channels == 0;
  if (!whole_chunks) return false;
  if (shape.by_rows) {
    if (shape.pair_rows == 0) return false;  // windows may go beyond the end of a row
    // One window with 128 filters pays off only if TMA stores it, too.
    if (shape.filter_groups == 2 && !can_store_boxes(problem, shape)) return false;
    shape.box_columns = shape.segment_length;
    shape.box_rows = shape.boxes = 1;
  } else {
    shape.box_columns = shape.pitch;
    shape.box_rows = find_box_rows(shape);
    shape.rows = static_cast<int>(round_up(shape.rows, shape.box_rows));
    shape.boxes = count_boxes(shape, shape.box_rows);
    shape.segment_length = shape.pitch * shape.box_rows * shape.boxes;
  }
  const auto is_box = [](int64_t count, int64_t step) {
    return (count - 1) * step + 1 <= kMaxBoxSpan && step <= kMaxBoxStep;
  };
  return is_box(shape.box_columns, shape.columns_axis.source_step) &&
         is_box(shape.box_rows, shape.rows_axis.source_step) &&
         shape.segment_count * shape.boxes <= kMaxBoxes &&
         shape.box_columns * shape.box_rows * shape.lane_bytes % kBoxAlignment == 0;
}

bool can_store_boxes(const ConvProblem& problem, const WindowShape& shape) {
  if (size_of(problem.dtype) != 2 || shape.pair_rows == 0) return false;
  const GatherTensors view = make_gather_tensors(problem);
  // Otherwise a box of 64 filters would overwrite the next group's.
  const bool whole_groups = problem.groups == 1 || view.target_channels % kWindowFilters == 0;
  return whole_groups && shape.rows_axis.target_step == 1 && shape.columns_axis.target_step == 1 &&
         has_boxes(view.target_strides, view.target_channels, 2);
}

}  // namespace convx
