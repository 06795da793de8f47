#include "engines/cuda_lines/window_costs.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace convx {
namespace {

// Rates in cycles of one multiprocessor, fitted to 1667 timings on an H200, of which they explain
// all but 11%; see docs/performance. What was not measured when they were fitted says so.
constexpr double kWindowClockGhz = 1.7;
// The tensor cores take 1 cycle per column of a 64-row product of 32 bytes depth on half their
// rate, so two warpgroups' products of one step take as many cycles as a window has columns.
// Of it, what is reached: each product reads its filters anew, so narrow windows take longer.
constexpr double kWideWindowEfficiency = 0.94;    // 192 columns and more
constexpr double kMiddleWindowEfficiency = 0.85;  // 128
constexpr double kNarrowWindowEfficiency = 0.5;
constexpr double kIeeeWindowEfficiency = 0.94;  // six products read the same
constexpr double kWindowBatchCycles = 60;       // between groups of products
constexpr double kIeeeBatchCycles = 260;        // which are added up there
constexpr double kScarceFilterStages = 1.06;    // fewer than three are not always there in time
constexpr double kWindowLineBytes = 30;         // lines per cycle, from L2
constexpr double kWindowFilterBytes = 20;       // the same of packed filters
// Handing sums over takes the multiplying warps some time per column. Storing is done by warps of
// their own, 64 filters at a time: where pixels are runs, where channels lie together, elsewhere.
constexpr double kWindowStageCycles = 7.6;
constexpr double kWindowRunCycles = 22;        // per column of 16-bit sums
constexpr double kWindowSectorRunCycles = 14;  // where only whole sectors are written; reckoned
constexpr double kWindowWideCycles = 30;       // reckoned
constexpr double kWindowScatterCycles = 44;
constexpr double kWindowTileCycles = 1900;     // filling and draining the pipeline
constexpr double kWindowLaunchCycles = 27000;  // of both kernels, and their first and last tiles
constexpr double kWindowBatchLaunchCycles = 24000;  // the same for further images
constexpr double kWindowMemoryBytes = 10;           // of writing lines, per cycle
constexpr double kWindowStoredBytes = 15;           // of storing sums
constexpr double kWindowPartialBytes = 10;          // partial sums, written and read again

double find_efficiency(const WindowShape& shape) {
  if (shape.math == TensorMath::kIeee) return kIeeeWindowEfficiency;
  return shape.columns >= 192   ? kWideWindowEfficiency
         : shape.columns >= 128 ? kMiddleWindowEfficiency
                                : kNarrowWindowEfficiency;
}

// Cycles of a tile.
double predict_tile(const ConvProblem& problem, const WindowShape& shape) {
  const double taps = static_cast<double>(shape.rows_axis.taps * shape.columns_axis.taps);
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = ceil_div(int64_t{shape.channels} * operand_bytes(shape.math), 32) /
                       static_cast<double>(shape.splits);
  const int products = shape.math == TensorMath::kIeee ? 6 : 1;
  const double batches =
      chunks * static_cast<double>(ceil_div(static_cast<int64_t>(taps), shape.stage_taps)) *
      (shape.lane_bytes / 32) * static_cast<double>(ceil_div(shape.stage_taps, 4));
  const bool scarce = !shape.resident && shape.filter_stages < 3;
  const double multiply = (steps * taps * products * shape.columns / find_efficiency(shape) +
                           batches * (products == 1 ? kWindowBatchCycles : kIeeeBatchCycles)) *
                          (scarce ? kScarceFilterStages : 1);
  const double lines = chunks * shape.positions() * shape.lane_bytes * shape.planes();
  const double filters = shape.resident ? 0
                                        : chunks * taps * shape.filter_groups * shape.planes() *
                                              kWindowFilters * shape.lane_bytes;
  const bool runs = shape.strips == 1 && shape.columns_axis.count % 2 == 0 &&
                    problem.y_strides.c != 1 && shape.rows * shape.pitch >= kMinRunPositions;
  const bool wide = problem.y_strides.c == 1 && problem.K > 1;
  const double words = shape.splits > 1 || problem.dtype == DType::kFloat32 ? 2 : 1;
  const double store =
      shape.columns * words *
      (runs   ? (shape.window_step < shape.columns ? kWindowSectorRunCycles : kWindowRunCycles)
       : wide ? kWindowWideCycles
              : kWindowScatterCycles);
  return std::max({multiply + kWindowStageCycles * shape.columns,
                   lines / kWindowLineBytes + filters / kWindowFilterBytes, store}) +
         kWindowTileCycles;
}

}  // namespace

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const WindowShape& shape) {
  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  const int64_t batches = ceil_div(problem.N, std::max(1, shape.images));
  const double element = static_cast<double>(size_of(problem.dtype));
  const double source = static_cast<double>(problem.N * problem.C * problem.H * problem.W);
  const double target = static_cast<double>(problem.N * problem.K * problem.P * problem.Q);
  const double waves = static_cast<double>(batches * ceil_div(tiles, caps.sm_count));
  double cycles = waves * predict_tile(problem, shape);
  cycles = std::max(cycles, target * element / caps.sm_count / kWindowStoredBytes);
  cycles += kWindowLaunchCycles + static_cast<double>(batches - 1) * kWindowBatchLaunchCycles;
  const double line_bytes = static_cast<double>(batches * shape.line_bytes);
  cycles += (source * element + line_bytes) / caps.sm_count / kWindowMemoryBytes;
  cycles += 2 * static_cast<double>(shape.partial_bytes) / caps.sm_count / kWindowPartialBytes;
  return cycles / (kWindowClockGhz * 1e3);
}

}  // namespace convx
