#include "engines/cuda/boxes/boxes_params.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "planning/boxed_tensor.h"
#include "planning/staged_rows.h"

namespace convx {

namespace {

constexpr double kCopyLaunchMicroseconds = 2;
constexpr double kCopyBytesPerMicrosecond = 3e6;  // device memory, read and written
// Copies of planes, and the launch of one: 4 layers of 100 to 350 MB and 4 of less than 15 MB
// (2026-11-19).
constexpr double kPlaneBytesPerMicrosecond = 3.4e6, kPlaneCopyMicroseconds = 3.5;

void set_phases(BoxesParams& p, const ConvProblem& problem, const BoxesShape& shape) {
  int64_t tiles = 0, taps = 0;
  for (size_t i = 0; i < kMaxBoxPhases; ++i) {
    BoxPhaseParams& to = p.phases[i];
    if (i >= shape.phases.size()) {
      to.first_tile = std::numeric_limits<int>::max();
      continue;
    }
    const BoxPhase& phase = shape.phases[i];
    const TensorParams own = make_tensor_params(problem, phase.rows, phase.columns);
    to = {.first_tile = static_cast<int>(tiles),
          .first_tap = static_cast<int>(taps),
          .taps = own.tap_rows * own.tap_columns,
          .by_column_tiles = FastDivmod(phase.column_tiles),
          .by_row_tiles = FastDivmod(phase.row_tiles),
          .tap_rows = own.tap_rows,
          .tap_columns = own.tap_columns,
          .tap_r0 = own.tap_r0,
          .tap_r_step = own.tap_r_step,
          .tap_s0 = own.tap_s0,
          .tap_s_step = own.tap_s_step,
          .offset_h0 = own.offset_h0,
          .offset_h_step = own.offset_h_step,
          .offset_w0 = own.offset_w0,
          .offset_w_step = own.offset_w_step,
          .target = nullptr,
          .target_height = own.target_height,
          .target_width = own.target_width};
    tiles += shape.phase_tiles(phase) / shape.filter_tiles;
    taps += phase.taps();
  }
}

// Taps keep the order of the kernel's rows and columns.
FilterPack make_boxes_pack(const ConvProblem& problem, const BoxesParams& p) {
  const auto axis = [](int kernel) {
    return PackAxis{
        .kernel = kernel, .first = 0, .shift = 0, .tap_step = 1, .by_phases = FastDivmod(1)};
  };
  return make_filter_pack({.filters = p.group_targets,
                           .channels = p.group_sources,
                           .packed_channels = p.packed_channels,
                           .taps = {problem.R, problem.S}},
                          {.group = 0,
                           .filter = p.filter_target,
                           .channel = p.filter_source,
                           .r = p.filter_r,
                           .s = p.filter_s},
                          axis(p.kernel_rows), axis(p.kernel_columns), false);
}

// Makes the target one image with one row of pixels.
void flatten_target(BoxesParams& p, const BoxPhase& phase, int64_t pitch) {
  const auto pixels = static_cast<int>(p.images * phase.pixels());
  BoxPhaseParams& own = p.phases[0];
  own.target_width = p.target_width = pixels;
  own.target_height = p.target_height = p.images = 1;
  p.target_w = pitch;
  p.target_h = p.target_n = pixels * pitch;
}

}  // namespace

BoxesFit make_boxes_fit(const ConvProblem& problem, BoxesShape shape) {
  BoxesParams p{};
  static_cast<TensorParams&>(p) =
      make_tensor_params(problem, shape.phases[0].rows, shape.phases[0].columns);
  set_phases(p, problem, shape);
  p.tiles = narrow(shape.items());
  p.whole_tiles = narrow(shape.tiles() - shape.split_tiles());
  p.parts = shape.parts, p.part_steps = narrow(shape.part_steps());
  p.by_parts = FastDivmod(shape.parts);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_tile_kinds = FastDivmod(shape.tile_kinds());
  p.by_group_targets = FastDivmod(p.group_targets);
  p.by_box_columns = FastDivmod(shape.box.columns);
  p.by_box_rows = FastDivmod(shape.box.rows);
  p.box_columns = shape.box.columns, p.box_rows = shape.box.rows, p.box_images = shape.box.images;
  p.tiles_are_flat = shape.flat_pitch > 0;
  p.source_images = p.images;
  p.by_target_columns = FastDivmod(shape.phases[0].columns.count);
  p.by_target_rows = FastDivmod(shape.phases[0].rows.count);
  if (p.tiles_are_flat) flatten_target(p, shape.phases[0], shape.flat_pitch);
  p.plane = narrow(shape.plane_pixels());
  const int64_t plane_lines = ceil_div(p.plane, line_pixels(shape.math));
  p.lines = shape.form == BoxForm::kLines ? narrow(problem.N * plane_lines) : 0;
  p.by_plane_lines = FastDivmod(plane_lines);
  p.tile_filters = shape.filters;
  p.chunks = shape.chunks;
  p.by_chunks = FastDivmod(shape.chunks);
  p.stages = shape.stages, p.stage_bytes = shape.stage_bytes;
  p.pixel_bytes = shape.pixel_bytes, p.staging_bytes = shape.staging_bytes;
  p.tile_boxes = shape.tile_boxes(), p.is_staggered = shape.is_staggered();
  p.resident = shape.resident;
  p.filters_offset = shape.filters_offset, p.ring_offset = shape.ring_offset;
  p.packed_channels = narrow(shape.packed_channels);
  p.kernel_rows = narrow(problem.R), p.kernel_columns = narrow(problem.S);
  const FilterPack pack = make_boxes_pack(problem, p);
  return {std::move(shape), p, pack};
}

BoxesParams make_boxes_params(const ConvProblem& problem, const BoxesFit& fit,
                              const Buffers& buffers) {
  const BoxesShape& shape = fit.shape;
  BoxesParams p = fit.params;
  p.row_piece = shape.row_piece;
  bool aligned = true;
  for (size_t i = shape.phases.size(); i-- > 0;) {  // the first phase last: its fields stay in p
    const BoxPhase& phase = shape.phases[i];
    set_tensors(p, problem, phase.rows, phase.columns, buffers, 0, false);
    p.phases[i].target = p.target;
    p.row_piece = fit_unit_to_address(p.target, size_of(problem.dtype), p.row_piece);
    aligned = aligned && is_unit_aligned(p.target);
  }
  if (shape.in_turn) {
    p.taken = reinterpret_cast<int*>(static_cast<char*>(buffers.workspace) + shape.taken_offset);
  }
  if (shape.parts > 1) {
    p.sums = reinterpret_cast<float*>(static_cast<char*>(buffers.workspace) + shape.sums_offset);
  }
  // The caller's tensors may start at any address.
  p.boxed_source = is_unit_aligned(p.source);
  p.boxed_target = shape.boxed_target && aligned;
  p.dense_target = shape.dense_target && aligned;
  p.filter_order = is_unit_aligned(p.filters) ? shape.filter_order : BoxFilters::kPacked;
  return p;
}

CopiedPixels find_source_padding(const ConvProblem& problem) {
  const GatherTensors view = make_gather_tensors(problem);
  const int64_t channels = view.source_channels, size = size_of(problem.dtype);
  const bool together = channels == 1 || view.source_strides.c == 1;
  if (!together || find_box_form(problem)) return {};
  const Strides& from = view.source_strides;
  return {.element_bytes = size,
          .pixel_bytes = channels * size,
          .padded_bytes = round_up(channels * size, 16),
          .rows = view.source_h,
          .columns = view.source_w,
          .n = from.n,
          .h = from.h,
          .w = from.w,
          .count = problem.N * view.source_h * view.source_w};
}

ConvProblem with_padded_source(const ConvProblem& problem, const CopiedPixels& padding) {
  if (padding.count == 0) return problem;
  ConvProblem padded = problem;
  (problem.pass == Pass::kForward ? padded.x_strides : padded.y_strides) = channels_last_strides(
      padding.padded_bytes / padding.element_bytes, padding.rows, padding.columns);
  return padded;
}

PlaneCopies find_plane_copies(const ConvProblem& problem) {
  const GatherTensors view = make_gather_tensors(problem);
  const int64_t size = size_of(problem.dtype);
  const auto copy = [&](const Strides& strides, int64_t channels, int64_t rows, int64_t columns) {
    return PlaneCopy{.element_bytes = size,
                     .channels = channels,
                     .pixel_bytes = round_up(channels * size, 16),
                     .images = problem.N,
                     .rows = rows,
                     .columns = columns,
                     .strides = strides};
  };
  PlaneCopies copies;
  if (!has_boxes(view.source_strides, view.source_channels, size)) {
    copies.source = copy(view.source_strides, view.source_channels, view.source_h, view.source_w);
  }
  if (view.target_channels > 1 && view.target_strides.c != 1) {
    copies.target = copy(view.target_strides, view.target_channels, view.target_h, view.target_w);
  }
  return copies;
}

ConvProblem with_plane_copies(const ConvProblem& problem, const PlaneCopies& copies) {
  ConvProblem copied = problem;
  const bool forward = problem.pass == Pass::kForward;
  const auto replace = [](Strides& strides, const PlaneCopy& copy) {
    if (!copy.exists()) return;
    strides = channels_last_strides(copy.pixel_bytes / copy.element_bytes, copy.rows, copy.columns);
  };
  replace(forward ? copied.x_strides : copied.y_strides, copies.source);
  replace(forward ? copied.y_strides : copied.x_strides, copies.target);
  return copied;
}

double predict_plane_copies(const PlaneCopies& copies) {
  return kPlaneCopyMicroseconds * (copies.source.exists() + copies.target.exists()) +
         2 * static_cast<double>(copies.bytes()) / kPlaneBytesPerMicrosecond;
}

double predict_padding(const CopiedPixels& padding) {
  if (padding.count == 0) return 0;
  return kCopyLaunchMicroseconds +
         2 * static_cast<double>(padding.bytes()) / kCopyBytesPerMicrosecond;
}

}  // namespace convx
