// Plans of cuda_lines, and the parameters that its kernels receive.
#include "engines/cuda/lines/window_fit.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/cuda_engines.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// The number of stages, about 16 taps, that the first warpgroup runs ahead of the second: enough to
// stage its accumulators while the other one multiplies. It must be less than the rings hold,
// because no stage is released before the second warpgroup has started.
int fit_lead(const WindowShape& shape) {
  const int64_t per_chunk = ceil_div(shape.taps(), shape.stage_taps);
  const int64_t per_tile = per_chunk * (shape.chunks / shape.splits);
  const int64_t filters = shape.resident ? per_tile : shape.filter_stages - 1;
  return static_cast<int>(std::min(
      {ceil_div(16, shape.stage_taps), filters, per_tile, shape.source_stages * per_chunk - 1}));
}

std::optional<WindowShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                     TensorMath math, const GatherPhase& phase, double give_up_us) {
  WindowShape shape = fit_window_shape(problem, caps, math, phase.rows, phase.columns, give_up_us);
  if (shape.columns == 0) return {};
  return shape;
}

constexpr int64_t kMaxBands = 16;

// The phases of the problem, each cut into as few bands of rows as its lines need to fit in the
// workspace. Empty if more than kMaxBands would be needed.
std::vector<GatherPhase> find_phases(const ConvProblem& problem, const DeviceCaps& caps) {
  const TensorMath math = tensor_math(problem);
  std::vector<GatherPhase> phases;
  for (const GatherPhase& phase : make_gather_phases(problem)) {
    // The lines of scaled fp16 are smaller, but the scales are in front of all lines.
    DeviceCaps rest = caps;
    if (const auto halves = find_halves(problem, phase.taps())) {
      rest.workspace_limit -= halves->scale_bytes;
    }
    const auto check = [&](const GatherPhase& band) {
      return check_window_shape(problem, rest, math, band.rows, band.columns);
    };
    const auto fits = [&](const GatherPhase& band) { return check(band) == WindowFitness::kFits; };
    const WindowFitness whole = check(phase);
    if (whole == WindowFitness::kNeverFits) return {};
    if (whole == WindowFitness::kFits) {
      phases.push_back(phase);
      continue;
    }
    std::vector<GatherPhase> bands = cut_bands(phase, 2);
    for (int64_t most = 4; !std::all_of(bands.begin(), bands.end(), fits); most *= 2) {
      if (most > kMaxBands) return {};
      bands = cut_bands(phase, most);
    }
    phases.insert(phases.end(), bands.begin(), bands.end());
  }
  return phases;
}

std::optional<Plan> plan_phases_of(const ConvProblem& problem, const DeviceCaps& caps,
                                   const std::vector<GatherPhase>& phases, double give_up_us) {
  Plan plan;
  plan.engine = EngineId::kCudaLines;
  const auto take = [&](WindowShape shape, int64_t before) {
    plan.tile = {int64_t{kWindowFilters} * shape.filter_groups, shape.columns * shape.windows(),
                 shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes = std::max(
        plan.workspace_bytes, before + shape.packed_bytes + shape.line_bytes + shape.partial_bytes);
    return make_window_fit(problem, std::move(shape));
  };
  // The least that the phases after each one take.
  std::vector<double> rest_us(phases.size());
  for (size_t i = phases.size(); i-- > 1;) {
    rest_us[i - 1] = rest_us[i] + bound_phase_us(problem, caps, phases[i]);
  }
  std::optional<PhasedPlan<WindowFit>> fits =
      plan_phases<WindowFit>(plan, problem, caps, phases, fit_shape, take, give_up_us, rest_us);
  if (!fits) return std::nullopt;
  plan.geometry = make_geometry(LinesPlan{problem, std::move(*fits)});
  return plan;
}

// Whole phases, unless the workspace may be too small for the lines of one.
std::optional<Plan> plan_lines(const ConvProblem& problem, const DeviceCaps& caps,
                               double give_up_us) {
  const std::vector<GatherPhase> phases = find_phases(problem, caps);
  if (phases.empty()) return std::nullopt;
  return plan_phases_of(problem, caps, phases, give_up_us);
}

// A sum of predictions may be rounded upwards, a difference from a limit downwards.
constexpr double kRounding = 1 + 1e-9;

Consideration consider(const ConvProblem& p, const DeviceCaps& caps, const SearchLimits& limits) {
  if (std::string why = refuse_wgmma_gather(p, caps); !why.empty()) return Refusal{why};
  if (std::string unreached = refuse_unreached_pixels(p); !unreached.empty()) {
    return Refusal{unreached};
  }
  std::optional<Plan> plan = plan_lines(p, caps, limits.give_up_us);
  const ConvProblem flat = flatten_pixels(p, 2);
  if (flat.N != p.N) {
    const double most_us = plan ? plan->predicted_us : limits.give_up_us;
    std::optional<Plan> other = plan_lines(flat, caps, most_us * kRounding);
    if (other && other->predicted_us < most_us) plan = std::move(other);
  }
  if (!plan) return Refusal{"no tile fits in shared memory, or no line in the workspace"};
  return std::move(*plan);
}

// The kernels of strict float32 apply none (stage_accumulators.cuh).
double fused_pass_us(const ConvProblem& p, const DeviceCaps& caps) {
  const bool strict = p.dtype == DType::kFloat32 && p.precision == Precision::kIeee;
  return strict ? separate_pass_us(p, caps) : pass_us_unless_relu(p, caps);
}

}  // namespace

WindowFit make_window_fit(const ConvProblem& problem, WindowShape shape) {
  const GatherAxis& rows = shape.rows_axis;
  const GatherAxis& columns = shape.columns_axis;
  WindowParams p{};
  static_cast<TensorParams&>(p) = make_tensor_params(problem, rows, columns);
  p.lines = shape.lines, p.line_positions = shape.line_positions;
  p.slabs = narrow(problem.groups * shape.chunks);
  p.pitch = shape.pitch, p.rows = shape.rows, p.strips = shape.strips;
  p.strip_columns = shape.strip_columns;
  p.row_base = shape.row_base, p.column_base = shape.column_base;
  p.window_step = shape.window_step, p.second_window = shape.second_window;
  p.overlap = shape.window_step < shape.columns;
  p.second_offset = shape.second_offset;
  p.pair_rows = shape.pair_rows, p.column_windows = shape.column_windows;
  p.pairs_per_image = shape.pairs_per_image;
  p.filter_groups = shape.filter_groups, p.filter_tiles = shape.filter_tiles;
  p.splits = shape.splits;
  const int64_t filter_tiles = problem.groups * shape.filter_tiles;
  p.tiles = narrow(shape.pixel_tiles * filter_tiles * shape.splits);
  p.segments = narrow(shape.segments.size()), p.segment_length = shape.segment_length;
  p.taps = shape.taps(), p.channels = shape.channels, p.chunks = shape.chunks;
  p.chunk_channels = shape.chunk_channels, p.lane_bytes = shape.lane_bytes;
  p.stage_taps = shape.stage_taps, p.chain_steps = shape.chain_steps;
  p.source_stages = shape.source_stages, p.filter_stages = shape.filter_stages;
  p.resident = shape.resident;
  p.table_offset = shape.table_offset, p.staging_offset = shape.staging_offset;
  p.source_offset = shape.source_offset, p.filter_offset = shape.filter_offset;
  p.plane_bytes = shape.plane_bytes;
  p.box_columns = shape.box_columns, p.box_rows = shape.box_rows, p.boxes = shape.boxes;
  p.whole_rows = shape.box_columns > 0 && !shape.by_rows;
  p.streams = shape.streams(), p.tile_step = shape.tile_step(), p.reach = shape.reach;
  p.ring_positions = shape.ring_positions, p.stretch = shape.stretch;
  p.raw_offset = shape.raw_offset, p.raw_stretches = shape.raw_stretches;
  if (shape.splits > 1) p.plane_contiguous = true;  // partial sums have contiguous planes
  p.lead = fit_lead(shape);

  p.by_pitch = FastDivmod(shape.pitch), p.by_rows = FastDivmod(shape.rows);
  p.by_strips = FastDivmod(shape.strips);
  p.by_splits = FastDivmod(shape.splits);
  p.by_filter_tiles_all = FastDivmod(filter_tiles);
  p.by_filter_tiles = FastDivmod(shape.filter_tiles);
  p.by_column_windows = FastDivmod(shape.column_windows);
  p.by_pairs_per_image = FastDivmod(shape.pairs_per_image);
  p.by_box = FastDivmod(std::max(1, shape.box_rows * shape.pitch));
  p.by_pair_rows = FastDivmod(std::max(1, shape.pair_rows));
  std::copy(shape.tap_positions.begin(), shape.tap_positions.end(), p.tap_positions);
  std::copy(shape.segments.begin(), shape.segments.end(), p.segment);

  return {std::move(shape), p};
}

WindowParams make_window_params(const ConvProblem& problem, const WindowFit& fit, Buffers buffers,
                                int64_t offset) {
  WindowParams p = fit.params;
  buffers.workspace = static_cast<char*>(buffers.workspace) + offset;
  const int64_t element = size_of(problem.dtype);
  const bool split = fit.shape.splits > 1;
  set_tensors(p, problem, fit.shape.rows_axis, fit.shape.columns_axis, buffers,
              fit.shape.packed_bytes + fit.shape.line_bytes, split);
  p.lines_memory = static_cast<char*>(buffers.workspace) + fit.shape.packed_bytes;
  const auto is_multiple = [&](int64_t of, auto... elements) {
    return ((elements * element % of == 0) && ...);
  };
  p.wide_channels = p.source_c == 1 && is_unit_aligned(p.source) &&
                    is_multiple(16, p.source_n, p.source_h, p.source_w, p.group_sources);
  p.wide_target = !split && p.target_c == 1 && is_unit_aligned(p.target) &&
                  is_multiple(16, p.target_n, p.target_h, p.target_w, p.group_targets);
  p.aligned_rows = p.source_w == 1 && is_unit_aligned(p.source) &&
                   is_multiple(16, p.source_n, p.source_c, p.source_h, p.source_width);
  p.boxed_target = fit.shape.stores_boxes && p.wide_target;
  // Pairs of pixels are aligned if the address and the strides are even. Partial sums are dense.
  const bool even_target = split || (is_multiple(2 * element, p.target_n, p.target_c) &&
                                     is_aligned(p.target, problem.dtype, 2));
  p.even_runs = p.plane_contiguous && p.strips == 1 && p.target_width % 2 == 0 &&
                p.pitch % 2 == 0 && p.pitch >= 8 && p.rows * p.pitch >= kMinRunPositions &&
                even_target;
  const int stored = split ? 4 : static_cast<int>(element);
  // A window of a pair of rows has no gaps between rows.
  const int64_t sector =
      sector_positions(stored, p.target_width, p.pair_rows > 0 ? p.target_width : p.pitch);
  p.carries = fit.shape.pace == Pace::kCarry && p.even_runs;
  p.cut_sectors = p.even_runs && sector <= shared_columns(stored);
  return p;
}

void WindowShape::describe(Text& out) const {
  out << "tile " << kWindowFilters * filter_groups << " filters x " << windows() * columns
      << " positions";
  describe_stages(out, source_stages, resident ? 0 : filter_stages);
  if (resident) out << ", resident filters";
  describe_split(out, splits);
  if (streams()) out << (pace == Pace::kCarry ? ", streams and carries sectors" : ", streams");
  if (box_columns > 0) out << ", TMA boxes of " << box_rows << "x" << box_columns << " pixels";
  out << ", " << lane_bytes << " bytes of channels, " << name_of(math);
}

Engine cuda_lines_engine() {
  return {.id = EngineId::kCudaLines,
          .name = "cuda_lines",
          .consider = consider,
          .bound_us = bound_lines_us,
          .typical_ratio = 1.3,
          .separate_pass_us = fused_pass_us};
}

}  // namespace convx
