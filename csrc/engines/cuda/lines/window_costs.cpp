#include "engines/cuda/lines/window_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "engines/cuda/lines/window_rates.h"
#include "planning/boxed_tensor.h"
#include "planning/device_rates.h"
#include "planning/half_plan.h"

namespace convx {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

int count_products(TensorMath math) {
  return math == TensorMath::kIeee ? 6 : math == TensorMath::kHalfIeee ? 3 : 1;
}

double find_efficiency(TensorMath math, int columns) {
  if (count_products(math) > 1) return kIeeeWindowEfficiency;
  return columns >= 192   ? kWideWindowEfficiency
         : columns >= 128 ? kMiddleWindowEfficiency
                          : kNarrowWindowEfficiency;
}

// Cycles to store a tile's results by bulk copies, one per filter and run (runs) or one per pixel.
double predict_copies(const WindowShape& shape, double element_bytes, bool runs) {
  const double filters = 2 * kWindowFilters;  // both warpgroups share the bandwidth
  const double bytes = filters * shape.window_step * element_bytes;
  if (shape.stores_boxes) return bytes / kWindowStoredBytes;
  if (!runs) {
    return std::max(2 * shape.window_step * kWindowCopyCycles, bytes / kWindowStoredBytes);
  }
  const double per_filter = 1 + shape.columns / static_cast<double>(shape.rows * shape.pitch);
  const int64_t width = shape.columns_axis.count;
  const bool overlap = shape.window_step < shape.columns || shape.pace == Pace::kCarry;
  const bool whole_rows = shape.pair_rows > 0 || shape.pitch == width;
  const bool sectors =
      overlap || (whole_rows && width * static_cast<int64_t>(element_bytes) % 32 == 0);
  const double partial = sectors ? 0 : 2 * filters * per_filter * kPartialSectorCycles;
  const int parts = staging_parts(shape.columns, static_cast<int>(element_bytes));
  return std::max(filters * parts * per_filter * kWindowCopyCycles,
                  bytes / kWindowStoredBytes + partial);
}

// Accumulation chains of so many groups of MMAs or steps.
double count_chains(TensorMath math, double groups, double steps, int chain_steps) {
  return math == TensorMath::kIeee       ? groups
         : math == TensorMath::kHalfIeee ? steps / chain_steps
                                         : 0;
}

double transposed_position_cycles(TensorMath math) {
  return is_half(math) ? kConvertedPositionCycles : kTransposedPositionCycles;
}

double find_position_cycles(const PhaseCosts& costs, const WindowShape& shape) {
  const ConvProblem& problem = costs.problem;
  const GatherTensors& view = costs.tensors;
  const int64_t pixel_bytes = view.source_channels * size_of(problem.dtype);
  if (pixel_bytes <= kWholePixelBytes || shape.lane_bytes >= kWholePixelBytes) {
    return kBoxPositionCycles;
  }
  const double near =
      find_near_share(static_cast<double>(problem.N * view.source_h * view.source_w * pixel_bytes));
  const double sliced = shape.lane_bytes > 32 ? kHalfLinePositionCycles : kSlicedPositionCycles;
  return near * kBoxPositionCycles + (1 - near) * sliced;
}

bool has_waits(const PhaseCosts& costs) {
  return costs.taps == 1 &&
         (costs.problem.dtype == DType::kFloat32 || costs.tensors.source_strides.c == 1);
}

// Whether the scales of fp16 are measured before the filters are packed.
bool measures_halves(const PhaseCosts& costs, TensorMath math) {
  return is_half(math) && costs.tensors.source_strides.c == 1;
}

// Cycles of reading the filters for that.
double count_measuring(const ConvProblem& problem) {
  const int64_t filters = problem.K * problem.channels_per_group() * problem.taps();
  return static_cast<double>(filters * size_of(problem.dtype)) / kMeasuredFilterBytes;
}

// Cycles of a tile: the slowest of MMAs with staging, the source producer, and the stores.
double predict_tile(const PhaseCosts& costs, const WindowShape& shape) {
  const ConvProblem& problem = costs.problem;
  const GatherTensors& view = costs.tensors;
  const double taps = static_cast<double>(shape.rows_axis.taps * shape.columns_axis.taps);
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = ceil_div(int64_t{shape.channels} * operand_bytes(shape.math), 32) /
                       static_cast<double>(shape.splits);
  const int products = count_products(shape.math);
  // Groups of MMAs: one per step and filter stage. The steps of a single tap form one group.
  const double groups =
      taps == 1
          ? chunks
          : static_cast<double>(ceil_div(static_cast<int64_t>(taps), shape.stage_taps)) * steps;
  const double group_products = taps * steps * products / groups;
  const double issue_cycles = shape.box_columns > 0 ? kBoxGroupCycles : kWindowGroupCycles;
  const double group_cycles =
      std::max(group_products * shape.columns / find_efficiency(shape.math, shape.columns),
               issue_cycles + kWindowProductCycles * group_products);
  const double chains = count_chains(shape.math, groups, steps * taps, shape.chain_steps);
  const bool scarce = !shape.resident && shape.filter_stages < 3;
  const bool few_sources = shape.source_stages < 3 && chunks > 8;
  const double multiply =
      (groups * group_cycles + chains * kIeeeBatchCycles) * (scarce ? kScarceFilterStages : 1);
  const double lines = chunks * shape.positions() * shape.lane_bytes * shape.planes();
  const double filters = shape.resident ? 0
                                        : chunks * taps * shape.filter_groups * shape.planes() *
                                              kWindowFilters * shape.lane_bytes;
  const bool runs =
      costs.may_store_runs && shape.strips == 1 && shape.rows * shape.pitch >= kMinRunPositions;
  const double words = shape.splits > 1 || problem.dtype == DType::kFloat32 ? 2 : 1;
  const bool odd = shape.splits == 1 && costs.stores_odd_pixels;
  const auto own_filters =
      static_cast<double>(std::min<int64_t>(view.target_channels, 2 * kWindowFilters));
  const double store = odd ? shape.window_step * own_filters * kOddValueCycles
                       : runs || costs.stores_pixels ? predict_copies(shape, words * 2, runs)
                                                     : shape.columns * words * kWindowScatterCycles;
  const double boxes =
      chunks * static_cast<double>(shape.segment_count) * shape.boxes *
      (kBoxCycles + find_position_cycles(costs, shape) * shape.box_rows * shape.box_columns);
  const double filter_cycles = filters / kWindowFilterBytes;
  const double sources =
      shape.streams() ? shape.tile_step() * transposed_position_cycles(shape.math)
      : shape.box_columns > 0
          ? boxes + filter_cycles
          : (lines / kWindowLineBytes + filter_cycles) * (few_sources ? kScarceSourceStages : 1);
  return std::max({multiply + kWindowStageCycles * words * shape.columns, sources, store}) *
             (has_waits(costs) ? kSingleTapWaits : 1) +
         kWindowTileCycles;
}

}  // namespace

PhaseCosts make_phase_costs(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math,
                            const GatherAxis& rows, const GatherAxis& columns) {
  const GatherTensors view = make_gather_tensors(problem);
  const bool wide = view.target_strides.c == 1 && problem.groups * view.target_channels > 1;
  const bool odd =
      wide && !has_boxes(view.target_strides, view.target_channels, size_of(problem.dtype));
  const double target_values = static_cast<double>(problem.N * problem.groups) *
                               static_cast<double>(view.target_channels) *
                               static_cast<double>(rows.count * columns.count);
  const bool dense = rows.target_step == 1 && columns.target_step == 1;
  return {problem,
          caps,
          view,
          PhaseTraffic(problem, rows, columns),
          target_values,
          static_cast<double>(rows.count * columns.count),
          static_cast<double>(rows.taps * columns.taps),
          static_cast<double>(size_of(problem.dtype)),
          !may_box_source(problem, math) && !may_stream_source(problem, math),
          columns.count % 2 == 0 && dense && view.target_strides.c != 1,
          wide,
          odd};
}

namespace {

// The properties of a search's candidates that a bound depends on, beside the size of the tiles.
struct TileBound {
  int window_step;
  bool may_store_boxes, may_store_runs, may_scatter;
  double groups;         // of MMAs in a tile
  double issue_cycles;   // of a group
  int64_t images;        // that are computed at a time, if the reduction is not split
  double image_tiles;    // of the pixels of one image
  double source_cycles;  // of a tile, if blocks stream
  double positions;      // of a stage's lines, and of one image's in the workspace; 0 if there are
  double image_positions;  // none
  double launch_cycles;
};

// The least of what predict_tile has for storing a tile.
double bound_store(const PhaseCosts& costs, const TileCosts& tile, const TileBound& cut) {
  constexpr double kFilters = 2 * kWindowFilters;
  const double element = costs.element_bytes;
  if (costs.stores_odd_pixels) return 0;
  const double bytes = kFilters * cut.window_step * element / kWindowStoredBytes;
  if (cut.may_store_boxes) return bytes;
  if (costs.stores_pixels) return std::max(2 * cut.window_step * kWindowCopyCycles, bytes);
  const double scatter = tile.columns * element / 2 * kWindowScatterCycles;
  if (!cut.may_store_runs) return scatter;
  const int parts = staging_parts(tile.columns, static_cast<int>(element));
  const double runs = std::max(kFilters * parts * kWindowCopyCycles, bytes);
  return cut.may_scatter ? std::min(runs, scatter) : runs;
}

// The least for so many split-K slices or more.
double bound_cut(const PhaseCosts& costs, const TileCosts& tile, const TileBound& cut,
                 int least_splits) {
  if (costs.problem.N == 0) return 0;  // no batch is launched
  const double sms = costs.caps.sm_count;
  const double chains = tile.math == TensorMath::kIeee ? cut.groups : tile.step_chains;
  const double multiply =
      std::max(tile.product_cycles, cut.groups * cut.issue_cycles + tile.product_issue_cycles) +
      chains * kIeeeBatchCycles;
  const double sources = std::max(
      cut.source_cycles, tile.plane_bytes * cut.positions / kWindowLineBytes + tile.filter_cycles);
  const double store = bound_store(costs, tile, cut);
  const int64_t batches = cut.images == costs.problem.N ? 1 : ceil_div(costs.problem.N, cut.images);
  const double images = static_cast<double>(cut.images);
  const double tiles = tile.filter_tiles * cut.image_tiles * images * kBoundFactor;
  double around = cut.launch_cycles + tile.pack_cycles + tile.measure_cycles +
                  static_cast<double>(batches - 1) * kWindowBatchLaunchCycles;
  if (cut.image_positions > 0) {
    const double groups = static_cast<double>(batches * costs.problem.groups);
    const double line_bytes = groups * images * cut.image_positions * tile.plane_bytes;
    const double rate =
        costs.tensors.source_strides.c == 1 ? kWindowCopiedBytes : kWindowMemoryBytes;
    around += (costs.traffic.source * costs.element_bytes + line_bytes) / sms / rate;
  }
  // Reductions of batches are not split.
  const int64_t most_splits = batches > 1 ? 1 : std::min<int64_t>(tile.chunks, kMaxWindowSplits);
  double cycles = kNever;
  for (int splits = least_splits; splits <= most_splits; ++splits) {
    const double share = 1.0 / splits;
    const double of_tile =
        std::max({multiply * share + tile.stage_cycles, sources * share, store}) * tile.waits +
        kWindowTileCycles;
    const double waves = static_cast<double>(batches) * std::ceil(splits * tiles / sms);
    const double whole = std::max(waves * of_tile, tile.store_cycles) + around;
    cycles = std::min(
        cycles, splits == 1 ? whole : (whole + splits * tile.partial_cycles) * kWindowSplitTiles);
    if (tiles >= 2 * sms) break;  // such tiles are never split
  }
  // The two sums are rounded differently.
  return cycles / (kWindowClockGhz * 1e3) * kBoundFactor;
}

}  // namespace

TileCosts make_tile_costs(const PhaseCosts& costs, TensorMath math, int lane_bytes, int columns,
                          int filter_groups) {
  const ConvProblem& problem = costs.problem;
  const GatherTensors& view = costs.tensors;
  const double sms = costs.caps.sm_count;
  const int64_t channel_bytes = view.source_channels * operand_bytes(math);
  const int64_t chunks = ceil_div(channel_bytes, lane_bytes);
  const int64_t filter_tiles =
      ceil_div(view.target_channels, int64_t{kWindowFilters} * filter_groups);
  const double plane_bytes = static_cast<double>(chunks * lane_bytes * count_planes(math));
  // As predict_tile has it, with the longest filter stages.
  const int64_t steps = ceil_div(channel_bytes, 32);
  const auto taps = static_cast<int64_t>(costs.taps);
  const int chain_steps = find_chain_steps(taps * steps);
  const int64_t long_taps =
      count_stage_taps(math, filter_groups, lane_bytes, chain_steps, kLongFilterStageBytes);
  const auto count_groups = [&](int64_t stage_taps) {
    return static_cast<double>(taps == 1 ? chunks : ceil_div(taps, stage_taps) * steps);
  };
  const double products = static_cast<double>(taps * steps * count_products(math));
  const bool rereads_filters = filter_tiles > 1 || problem.groups > 1;
  const int64_t tap_bytes =
      int64_t{filter_groups} * count_planes(math) * kWindowFilters * lane_bytes;
  const int64_t packed_bytes = problem.groups * filter_tiles * chunks * taps * tap_bytes;
  const double filters = rereads_filters ? costs.taps * filter_groups * kWindowFilters : 0;
  return {.math = math,
          .lane_bytes = lane_bytes,
          .columns = columns,
          .filter_groups = filter_groups,
          .chunks = chunks,
          .filter_tiles = static_cast<double>(problem.groups * filter_tiles),
          .plane_bytes = plane_bytes,
          .long_groups = count_groups(long_taps),
          .streamed_groups = count_groups(kMaxBatchTaps),
          .product_cycles = products * columns / find_efficiency(math, columns),
          .product_issue_cycles = products * kWindowProductCycles,
          .step_chains = count_chains(math, 0, static_cast<double>(taps * steps), chain_steps),
          .stage_cycles = kWindowStageCycles * costs.element_bytes / 2 * columns,
          .filter_cycles = plane_bytes * filters / kWindowFilterBytes,
          .waits = has_waits(costs) ? kSingleTapWaits : 1,
          .measure_cycles = measures_halves(costs, math) ? count_measuring(problem) : 0,
          .pack_cycles = costs.traffic.group_cycles(problem, costs.caps.sm_count, packed_bytes, 1,
                                                    kGroupSumLaunchCycles),
          .store_cycles = costs.traffic.target * costs.element_bytes / sms / kWindowStoredBytes,
          .partial_cycles = 8 * costs.target_values / sms / kWindowPartialBytes};
}

double bound_microseconds(const PhaseCosts& costs, const TileCosts& tile, const WindowShape& shape,
                          bool by_boxes, int least_splits) {
  const bool measures = measures_halves(costs, tile.math);
  const bool streams = shape.streams(), has_lines = !by_boxes && !streams;
  const double line = static_cast<double>(shape.strips) * shape.rows * shape.pitch;
  const double pixel_tiles = shape.pair_rows > 0
                                 ? static_cast<double>(shape.pairs_per_image) * shape.column_windows
                                 : line / shape.tile_step();
  // The rows of a line are rounded up to whole boxes.
  const bool may_run = by_boxes || shape.rows * shape.pitch >= kMinRunPositions;
  const TileBound cut{
      .window_step = shape.window_step,
      .may_store_boxes = shape.pair_rows > 0 && costs.element_bytes == 2,
      .may_store_runs = costs.may_store_runs && shape.strips == 1 && may_run,
      .may_scatter = by_boxes,
      .groups = streams ? tile.streamed_groups : tile.long_groups,
      .issue_cycles = by_boxes ? kBoxGroupCycles : kWindowGroupCycles,
      .images = shape.images,
      .image_tiles = pixel_tiles,
      .source_cycles = streams ? shape.tile_step() * transposed_position_cycles(tile.math) : 0,
      .positions = has_lines ? static_cast<double>(shape.positions()) : 0,
      .image_positions = has_lines ? line * shape.lines : 0,
      .launch_cycles = by_boxes   ? kBoxLaunchCycles
                       : measures ? kMeasuredLaunchCycles
                                  : kWindowLaunchCycles};
  return bound_cut(costs, tile, cut, least_splits);
}

double bound_tile_us(const PhaseCosts& costs, const TileCosts& tile) {
  const bool has_lines = costs.needs_lines;
  const int windows = tile.filter_groups == 1 ? 2 : 1;
  const int element = static_cast<int>(costs.element_bytes);
  // A line has a position for each pixel at least, and a stage one for each column of a window.
  const TileBound cut{.window_step = tile.columns - shared_columns(element),
                      .may_store_boxes = element == 2,
                      .may_store_runs = costs.may_store_runs,
                      .may_scatter = true,
                      .groups = has_lines ? tile.long_groups : tile.streamed_groups,
                      .issue_cycles = has_lines ? kWindowGroupCycles : kBoxGroupCycles,
                      .images = costs.problem.N,
                      .image_tiles = costs.pixels / (tile.columns * windows),
                      .source_cycles = 0,
                      .positions = has_lines ? static_cast<double>(tile.columns) : 0,
                      .image_positions = has_lines ? costs.pixels : 0,
                      .launch_cycles = kWindowLaunchCycles};
  return bound_cut(costs, tile, cut, 1);
}

int find_chain_steps(int64_t steps) {
  return steps > kShortReductionSteps ? kHalfChainSteps : kShortHalfChainSteps;
}

int64_t count_stage_taps(TensorMath math, int filter_groups, int lane_bytes, int chain_steps,
                         int64_t stage_bytes) {
  const int64_t tap_bytes =
      int64_t{filter_groups} * count_planes(math) * kWindowFilters * lane_bytes;
  const int64_t most = math == TensorMath::kIeee ? std::max(1, kIeeeChainSteps * 32 / lane_bytes)
                       : math == TensorMath::kHalfIeee ? chain_steps
                                                       : kMaxBatchTaps;
  return std::clamp<int64_t>(stage_bytes / tap_bytes, 1, most);
}

namespace {

// The least for one operand format. A tile is 64 filters by two windows, or 128 by one.
double bound_math_us(const PhaseCosts& costs, TensorMath math) {
  const ConvProblem& problem = costs.problem;
  const GatherTensors& view = costs.tensors;
  const double element = costs.element_bytes, sms = std::max(costs.caps.sm_count, 1);
  const auto steps = static_cast<double>(ceil_div(view.source_channels * operand_bytes(math), 32));
  const double images = static_cast<double>(problem.groups * problem.N);
  const auto filter_tiles = static_cast<double>(ceil_div(view.target_channels, kWindowFilters));
  const double positions = images * costs.pixels * filter_tiles / 2;
  // Cycles per position of a tile, in the widest of windows.
  const int widest = list_columns(math)[0];
  const double multiply =
      costs.taps * steps * count_products(math) / find_efficiency(math, widest) +
      kWindowStageCycles * element / 2;
  const double scatter = element / 2 * kWindowScatterCycles;
  const double stream = 2 * kWindowFilters * element / kWindowStoredBytes;
  const double store = costs.stores_odd_pixels                       ? 0
                       : costs.stores_pixels || costs.may_store_runs ? std::min(stream, scatter)
                                                                     : scatter;
  const double position = std::max(multiply, store) * (has_waits(costs) ? kSingleTapWaits : 1) +
                          kWindowTileCycles / widest;
  double cycles =
      std::max(positions * position, costs.traffic.target * element / kWindowStoredBytes);
  if (costs.needs_lines) {
    const double line_bytes = images * costs.pixels * steps * 32 * count_planes(math);
    const double rate = view.source_strides.c == 1 ? kWindowCopiedBytes : kWindowMemoryBytes;
    cycles += (costs.traffic.source * element + line_bytes) / rate;
  }
  cycles = cycles / sms + kWindowLaunchCycles;
  return cycles / (kWindowClockGhz * 1e3) * kBoundFactor;
}

}  // namespace

double bound_phase_us(const ConvProblem& problem, const DeviceCaps& caps,
                      const GatherPhase& phase) {
  if (problem.N == 0) return 0;
  const auto bound = [&](TensorMath math) {
    return bound_math_us(make_phase_costs(problem, caps, math, phase.rows, phase.columns), math);
  };
  const double exact_us = bound(tensor_math(problem));
  const std::optional<Halves> halves = find_halves(problem, phase.taps());
  return halves ? std::min(exact_us, bound(halves->math) + kHalfMicroseconds) : exact_us;
}

double bound_lines_us(const ConvProblem& problem, const DeviceCaps& caps) {
  if (problem.pass == Pass::kWeightGrad) return 0;
  const std::vector<GatherPhase> phases = make_gather_phases(problem);
  double us = phases.size() > 1 ? predict_scattered_us(problem) : 0;
  for (const GatherPhase& phase : phases) us += bound_phase_us(problem, caps, phase);
  return us * kBoundFactor;
}

double predict_microseconds(const PhaseCosts& costs, const WindowShape& shape) {
  const ConvProblem& problem = costs.problem;
  const DeviceCaps& caps = costs.caps;
  const PhaseTraffic& traffic = costs.traffic;
  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  const int64_t batches = ceil_div(problem.N, std::max(1, shape.images));
  const double element = static_cast<double>(size_of(problem.dtype));
  const double waves = static_cast<double>(batches * ceil_div(tiles, caps.sm_count));
  double cycles = waves * predict_tile(costs, shape);
  // Each tile of filters reads the boxes again.
  const double read = shape.box_columns > 0 ? traffic.source * shape.filter_tiles : 0;
  cycles = std::max(cycles, (traffic.target + read) * element / caps.sm_count / kWindowStoredBytes);
  const bool channels_adjacent = costs.tensors.source_strides.c == 1;
  const bool measures = measures_halves(costs, shape.math);
  if (measures) cycles += count_measuring(problem);
  cycles += (shape.box_columns > 0 ? kBoxLaunchCycles
             : measures            ? kMeasuredLaunchCycles
                                   : kWindowLaunchCycles) +
            static_cast<double>(batches - 1) * kWindowBatchLaunchCycles;
  if (shape.box_columns > 0) {
    // Only the filters are prepared.
  } else if (shape.streams()) {
    cycles += shape.reach * transposed_position_cycles(shape.math);  // before the first tile
  } else {
    const double line_bytes = static_cast<double>(batches * shape.line_bytes);
    const double rate = channels_adjacent ? kWindowCopiedBytes : kWindowMemoryBytes;
    cycles += (traffic.source * element + line_bytes) / caps.sm_count / rate;
  }
  cycles += 2 * static_cast<double>(shape.partial_bytes) / caps.sm_count / kWindowPartialBytes;
  cycles += traffic.group_cycles(problem, caps.sm_count, shape.packed_bytes, shape.splits,
                                 kGroupSumLaunchCycles);
  if (shape.splits > 1) cycles *= kWindowSplitTiles;
  return cycles / (kWindowClockGhz * 1e3);
}

}  // namespace convx
