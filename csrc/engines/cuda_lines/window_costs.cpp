#include "engines/cuda_lines/window_costs.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/box_tensors.h"

namespace convx {
namespace {

// Rates in cycles of one multiprocessor, fitted to 1667 timings of 13 shapes on an H200 in November
// 2026, within 11% (rms); see docs/developers/dense-layers.md. A constant that was not measured
// then says so.
constexpr double kWindowClockGhz = 1.7;
// The tensor cores take 1 cycle per column of a 64-row product of 32 bytes depth on half their
// rate, so two warpgroups' products of one step take as many cycles as a window has columns.
// Of it, what is reached: each product reads its filters anew, so narrow windows take longer.
constexpr double kWideWindowEfficiency = 0.94;    // 192 columns and more
constexpr double kMiddleWindowEfficiency = 0.85;  // 128
constexpr double kNarrowWindowEfficiency = 0.5;
constexpr double kIeeeWindowEfficiency = 0.94;  // six products read the same
// What a warp takes to start a group of products, and each of them: the tensor cores wait where
// that is longer than they take. Seen in a profile, not fitted.
constexpr double kWindowGroupCycles = 900;
constexpr double kWindowProductCycles = 50;
constexpr double kIeeeBatchCycles = 260;      // of adding a chain up
constexpr double kScarceFilterStages = 1.06;  // fewer than three are not always there in time
constexpr double kScarceSourceStages = 1.5;   // the same of many chunks; seen on one shape
constexpr double kWindowLineBytes = 30;       // lines per cycle, from L2
constexpr double kWindowFilterBytes = 20;     // the same of packed filters
// Handing sums over takes the multiplying warps some time per column, of 16-bit sums. Storing is
// done by others, 64 filters at a time. Where pixels are runs, or channels lie together, it is the
// copy engine's, at the memory's rate, but it takes some time for any copy, be it of a filter's run
// or of a pixel's filters.
constexpr double kWindowStageCycles = 3.8;
constexpr double kWindowCopyCycles = 22;     // seen with copies alone
constexpr double kPartialSectorCycles = 4;   // of a sector that is written twice
constexpr double kWindowScatterCycles = 44;  // elsewhere, per column of 16-bit sums
// Reading a box of the source, and each of its positions, be it of 32 bytes or of 128.
constexpr double kBoxCycles = 60;
constexpr double kBoxPositionCycles = 1.4;
// Turning a position, by both warps of a block that walks; seen where that was what limited.
constexpr double kTurnedPositionCycles = 12;
constexpr double kHalvedPositionCycles = 21;  // the same where values are made halves
// Of float32, and where channels lie together: products hide nothing else.
constexpr double kSingleTapWaits = 1.25;
constexpr double kWindowTileCycles = 1900;     // filling and draining the pipeline
constexpr double kWindowLaunchCycles = 15000;  // of both kernels, and their first and last tiles
constexpr double kWindowBatchLaunchCycles = 13000;  // the same for further images
constexpr double kWindowMemoryBytes = 10;           // of writing lines, per cycle
constexpr double kWindowCopiedBytes = 18;           // the same where channels lie together
constexpr double kWindowStoredBytes = 15;           // of storing sums
constexpr double kOddValueCycles = 3.3;     // of storing one of a pixel that begins anywhere
constexpr double kWindowPartialBytes = 10;  // partial sums, written and read again

int count_products(TensorMath math) {
  return math == TensorMath::kIeee ? 6 : math == TensorMath::kHalfIeee ? 3 : 1;
}

double find_efficiency(const WindowShape& shape) {
  if (count_products(shape.math) > 1) return kIeeeWindowEfficiency;
  return shape.columns >= 192   ? kWideWindowEfficiency
         : shape.columns >= 128 ? kMiddleWindowEfficiency
                                : kNarrowWindowEfficiency;
}

// Cycles of storing a tile's sums by copies: of runs of each filter, or of each pixel's filters.
double predict_copies(const WindowShape& shape, double element_bytes, bool runs) {
  const double filters = 2 * kWindowFilters;  // of both warpgroups, which share the memory
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

double turned_position_cycles(TensorMath math) {
  return is_half(math) ? kHalvedPositionCycles : kTurnedPositionCycles;
}

// Cycles of a tile.
double predict_tile(const ConvProblem& problem, const WindowShape& shape) {
  const double taps = static_cast<double>(shape.rows_axis.taps * shape.columns_axis.taps);
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = ceil_div(int64_t{shape.channels} * operand_bytes(shape.math), 32) /
                       static_cast<double>(shape.splits);
  const int products = count_products(shape.math);
  // Groups of products, one of each step of a stage; a single tap's steps are one.
  const double groups =
      taps == 1
          ? chunks
          : static_cast<double>(ceil_div(static_cast<int64_t>(taps), shape.stage_taps)) * steps;
  const double group_products = taps * steps * products / groups;
  const double group_cycles = std::max(group_products * shape.columns / find_efficiency(shape),
                                       kWindowGroupCycles + kWindowProductCycles * group_products);
  const double chains = shape.math == TensorMath::kIeee       ? groups
                        : shape.math == TensorMath::kHalfIeee ? steps * taps / shape.chain_steps
                                                              : 0;
  const bool scarce = !shape.resident && shape.filter_stages < 3;
  const bool few_sources = shape.source_stages < 3 && chunks > 8;
  const double multiply =
      (groups * group_cycles + chains * kIeeeBatchCycles) * (scarce ? kScarceFilterStages : 1);
  const double lines = chunks * shape.positions() * shape.lane_bytes * shape.planes();
  const double filters = shape.resident ? 0
                                        : chunks * taps * shape.filter_groups * shape.planes() *
                                              kWindowFilters * shape.lane_bytes;
  const GatherTensors view = make_gather_tensors(problem);
  const bool wide = view.target_strides.c == 1 && problem.groups * view.target_channels > 1;
  const bool dense = shape.rows_axis.target_step == 1 && shape.columns_axis.target_step == 1;
  const bool runs = shape.strips == 1 && shape.columns_axis.count % 2 == 0 && dense &&
                    view.target_strides.c != 1 && shape.rows * shape.pitch >= kMinRunPositions;
  const double words = shape.splits > 1 || problem.dtype == DType::kFloat32 ? 2 : 1;
  const bool odd = wide && shape.splits == 1 &&
                   !has_boxes(view.target_strides, view.target_channels, size_of(problem.dtype));
  const auto own_filters =
      static_cast<double>(std::min<int64_t>(view.target_channels, 2 * kWindowFilters));
  const double store = odd            ? shape.window_step * own_filters * kOddValueCycles
                       : runs || wide ? predict_copies(shape, words * 2, runs)
                                      : shape.columns * words * kWindowScatterCycles;
  const double boxes = chunks * static_cast<double>(shape.segments.size()) * shape.boxes *
                       (kBoxCycles + kBoxPositionCycles * shape.box_rows * shape.box_columns);
  const double filter_cycles = filters / kWindowFilterBytes;
  const double sources = shape.walks() ? shape.tile_step() * turned_position_cycles(shape.math)
                         : shape.box_columns > 0 ? boxes + filter_cycles
                                                 : (lines / kWindowLineBytes + filter_cycles) *
                                                       (few_sources ? kScarceSourceStages : 1);
  const bool waits = taps == 1 && (problem.dtype == DType::kFloat32 || view.source_strides.c == 1);
  return std::max({multiply + kWindowStageCycles * words * shape.columns, sources, store}) *
             (waits ? kSingleTapWaits : 1) +
         kWindowTileCycles;
}

}  // namespace

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const WindowShape& shape) {
  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  const int64_t batches = ceil_div(problem.N, std::max(1, shape.images));
  const double element = static_cast<double>(size_of(problem.dtype));
  const PhaseTraffic traffic(problem, shape.rows_axis, shape.columns_axis);
  const double waves = static_cast<double>(batches * ceil_div(tiles, caps.sm_count));
  double cycles = waves * predict_tile(problem, shape);
  // Boxes are read anew for each tile of filters.
  const double read = shape.box_columns > 0 ? traffic.source * shape.filter_tiles : 0;
  cycles = std::max(cycles, (traffic.target + read) * element / caps.sm_count / kWindowStoredBytes);
  cycles += kWindowLaunchCycles + static_cast<double>(batches - 1) * kWindowBatchLaunchCycles;
  if (shape.box_columns > 0) {
    // Nothing is prepared but filters.
  } else if (shape.walks()) {
    cycles += shape.reach * turned_position_cycles(shape.math);  // before the first tile
  } else {
    const double line_bytes = static_cast<double>(batches * shape.line_bytes);
    const double rate = make_gather_tensors(problem).source_strides.c == 1 ? kWindowCopiedBytes
                                                                           : kWindowMemoryBytes;
    cycles += (traffic.source * element + line_bytes) / caps.sm_count / rate;
  }
  cycles += 2 * static_cast<double>(shape.partial_bytes) / caps.sm_count / kWindowPartialBytes;
  return cycles / (kWindowClockGhz * 1e3);
}

}  // namespace convx
