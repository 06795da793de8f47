// How tiles read the source: as boxes of TMA, or by blocks that stream along the line.
#include "engines/cuda/lines/window_parts.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "planning/boxed_tensor.h"

namespace convx {
namespace {

constexpr int kBoxPositions = 64;   // the overhead of a box, in positions
constexpr int kMaxBoxes = 24;       // boxes per tile
constexpr int kBoxAlignment = 128;  // bytes; alignment of a box in shared memory
constexpr int kMaxFilterStages = 16;
constexpr int kMaxSourceStages = 3;
constexpr int64_t kFilterStageBytes = 18432;
constexpr int kBarrierBytes = 1024;
constexpr int kMaxSteps = 4;  // reduction steps of 32 bytes in a chunk

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

// True if bulk copies can read the source's rows, in units of 16 bytes.
bool has_copied_rows(const GatherTensors& view, int64_t element_bytes) {
  const int64_t unit = 16 / element_bytes;
  const Strides& strides = view.source_strides;
  return strides.w == 1 && view.source_w % unit == 0 && strides.h % unit == 0 &&
         strides.c % unit == 0 && strides.n % unit == 0;
}

// True if a warpgroup's next window is the next one on the line, and its pixels follow in memory.
bool can_carry(const ConvProblem& problem, const WindowShape& shape) {
  const Strides target = make_gather_tensors(problem).target_strides;
  const bool follows = shape.rows_axis.target_step == 1 && shape.columns_axis.target_step == 1;
  const int64_t width = shape.columns_axis.count;
  return may_carry(shape.math) && shape.filter_groups == 2 && follows && target.w == 1 &&
         target.h == width && width % 2 == 0 && target.c % 2 == 0 && target.n % 2 == 0;
}

// Chooses how many stretches the ring has, as many as fit in most_positions, and makes room for any
// that many consecutive stretches. The last stretch of a row may be shorter than the others.
// Returns false if the ring may have too few positions for a tile and the step to the next one.
bool fit_ring(WindowShape& shape, int64_t most_positions) {
  const int64_t stretch = shape.stretch, pitch = shape.pitch;
  const int64_t per_row = ceil_div(pitch, stretch);
  const int64_t last = pitch - (per_row - 1) * stretch;
  const auto most = [&](int64_t count) {
    return count / per_row * pitch + count % per_row * stretch;
  };
  const auto least = [&](int64_t count) {
    const int64_t rest = count % per_row;
    return count / per_row * pitch + (rest == 0 ? 0 : (rest - 1) * stretch + last);
  };
  int64_t count = kMaxStretches;
  while (count > 0 && round_up(most(count), kLineAlignment) > most_positions) --count;
  // If every tile starts at a stretch, its reach is rounded up to whole stretches. Otherwise it may
  // begin inside one.
  const bool aligned = pitch % stretch == 0 && shape.tile_step() % stretch == 0;
  const int64_t reach = aligned ? round_up(shape.reach, stretch) : shape.reach + stretch;
  if (least(count) < reach + shape.tile_step()) return false;
  shape.source_stages = static_cast<int>(count);
  shape.ring_positions = static_cast<int>(round_up(most(count), kLineAlignment));
  return true;
}

// Places the source and filter rings: filter stages of up to most_bytes, at least `least` of
// them.
bool fit_rings(const ConvProblem& problem, const DeviceCaps& caps, int64_t taps, int64_t room,
               int64_t most_bytes, int64_t least, WindowShape& shape) {
  const int64_t steps = taps * ceil_div(int64_t{shape.channels} * operand_bytes(shape.math), 32);
  shape.chain_steps = find_chain_steps(steps);
  const int64_t stages_per_chunk =
      ceil_div(taps, count_stage_taps(shape.math, shape.filter_groups, shape.lane_bytes,
                                      shape.chain_steps, most_bytes));
  const int64_t stage_taps = ceil_div(taps, stages_per_chunk);
  shape.stage_taps = static_cast<int>(stage_taps);
  const int64_t stage_bytes = stage_taps * window_tap_bytes(shape);
  const int64_t all_stages = stages_per_chunk * shape.chunks;

  const int64_t source_stage = int64_t{shape.plane_bytes} * shape.planes();
  int64_t source_stages = std::min<int64_t>(kMaxSourceStages, room / source_stage);
  while (source_stages > 2 && room - source_stages * source_stage < 3 * stage_bytes) {
    --source_stages;
  }
  if (source_stages < 2) return false;
  const int64_t filter_stages =
      std::min<int64_t>((room - source_stages * source_stage) / stage_bytes, kMaxFilterStages);
  const bool one_tile = shape.filter_tiles == 1 && problem.groups == 1;
  // Filters stay resident if they fit beside two source stages: a third source stage is not worth
  // reading the filters again for every tile.
  const int64_t left = (room - 2 * source_stage) / stage_bytes;
  shape.resident = one_tile && all_stages <= std::min<int64_t>(left, kMaxFilterStages);
  if (shape.resident) {
    shape.filter_stages = static_cast<int>(all_stages);
    source_stages =
        std::min<int64_t>(kMaxSourceStages, (room - all_stages * stage_bytes) / source_stage);
  } else {
    if (filter_stages < least) return false;
    shape.filter_stages = static_cast<int>(filter_stages);
  }
  shape.source_stages = static_cast<int>(source_stages);
  shape.filter_offset = static_cast<int>(shape.source_offset + source_stages * source_stage);
  shape.shared_bytes =
      static_cast<int>(shape.filter_offset + shape.filter_stages * stage_bytes + kTileAlignment);
  return shape.shared_bytes <= caps.shared_bytes_per_block;
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

bool may_stream_source(const ConvProblem& problem, TensorMath math) {
  return may_stream(math) && problem.groups == 1 &&
         has_copied_rows(make_gather_tensors(problem), size_of(problem.dtype));
}

bool fit_stream(const ConvProblem& problem, const DeviceCaps& caps, WindowShape& shape) {
  if (!may_stream_source(problem, shape.math) || shape.columns != kStreamColumns ||
      shape.lane_bytes != kStreamLaneBytes ||
      (shape.pace == Pace::kCarry && !can_carry(problem, shape))) {
    return false;
  }
  const int64_t element = size_of(problem.dtype);
  const bool one_tile = shape.filter_tiles == 1 && shape.chunks == 1;
  const bool one_line = shape.lines == 1 && shape.strips == 1 && shape.segment_count == 1 &&
                        shape.rows_axis.source_step == 1 && shape.columns_axis.source_step == 1;
  // A window covers at most two images.
  const bool two_images = int64_t{shape.rows} * shape.pitch >= shape.columns;
  if (!two_images || !one_tile || !one_line) return false;
  const int64_t taps = problem.taps();
  const int64_t stages = ceil_div(taps, kMaxBatchTaps);
  shape.stage_taps = static_cast<int>(ceil_div(taps, stages));
  shape.filter_stages = static_cast<int>(stages);
  shape.resident = true;
  const int64_t filter_bytes =
      stages * shape.stage_taps * shape.filter_groups * kWindowFilters * kStreamLaneBytes;
  shape.packed_bytes = taps * shape.filter_groups * kWindowFilters * kStreamLaneBytes;

  shape.stretch = static_cast<int>(kStretchBytes / element);
  shape.raw_offset = place_staging(shape, taps, static_cast<int>(element));
  // One raw stretch for each of the two warps, with 16 channels of 16-bit operands.
  constexpr int64_t kRawBytes = 2 * int64_t{kStreamLaneBytes / 2} * kRawPitchBytes;
  // Copies take long while memory is busy with stores, so a long prefetch distance matters most.
  bool fits = false;
  for (int raw = kMaxRawStretches; raw >= 1 && !fits; --raw) {
    shape.raw_stretches = raw;
    shape.source_offset =
        static_cast<int>(round_up(shape.raw_offset + raw * kRawBytes, kTileAlignment));
    const int64_t room =
        caps.shared_bytes_per_block - shape.source_offset - filter_bytes - 2 * kTileAlignment;
    fits = fit_ring(shape, room / kStreamLaneBytes - shape.columns);
  }
  if (!fits) return false;
  const int64_t ring_bytes = int64_t{shape.ring_positions + shape.columns} * kStreamLaneBytes;
  shape.filter_offset =
      static_cast<int>(round_up(shape.source_offset + ring_bytes, kTileAlignment));
  shape.shared_bytes = static_cast<int>(shape.filter_offset + filter_bytes + kTileAlignment);
  shape.images = static_cast<int>(problem.N);
  shape.pixel_tiles = count_pixel_tiles(shape, shape.images);
  return shape.shared_bytes <= caps.shared_bytes_per_block &&
         shape.packed_bytes <= caps.workspace_limit;
}

int64_t window_tap_bytes(const WindowShape& shape) {
  return int64_t{shape.filter_groups} * shape.planes() * kWindowFilters * shape.lane_bytes;
}

bool fit_stages(const ConvProblem& problem, const DeviceCaps& caps, int64_t taps,
                WindowShape& shape) {
  const int64_t plane = round_up(int64_t{shape.positions()} * shape.lane_bytes, kTileAlignment);
  shape.plane_bytes = static_cast<int>(plane);
  const int64_t stored = shape.splits > 1 ? 4 : size_of(problem.dtype);
  shape.stores_boxes = shape.splits == 1 && can_store_boxes(problem, shape);
  shape.source_offset = static_cast<int>(
      round_up(place_staging(shape, taps, static_cast<int>(stored)), kTileAlignment));

  // Long filter stages are better, if three of them fit.
  const auto room = caps.shared_bytes_per_block - shape.source_offset - kTileAlignment;
  return fit_rings(problem, caps, taps, room, kLongFilterStageBytes, 3, shape) ||
         fit_rings(problem, caps, taps, room, kFilterStageBytes, 2, shape);
}

int place_staging(WindowShape& shape, int64_t taps, int stored_bytes) {
  shape.table_offset = kBarrierBytes;
  const int64_t alignment = shape.stores_boxes ? kTileAlignment : 128;
  // With a single tap, the table has an entry for each of its steps.
  const int64_t entries = std::max<int64_t>(taps, kMaxSteps);
  shape.staging_offset = static_cast<int>(round_up(kBarrierBytes + entries * 4, alignment));
  return shape.staging_offset + staging_bytes(shape.columns, stored_bytes, shape.pace);
}

}  // namespace convx
