#include "engines/cuda_lines/window_costs.h"

#include <algorithm>

#include "core/arithmetic.h"

namespace convx {
namespace {

// Rates in cycles of one multiprocessor, fitted to an H200; see docs/performance.
constexpr double kWindowClockGhz = 1.7;
// The tensor cores take 1 cycle per column of a 64-row product of 32 bytes depth on half their
// rate, so two warpgroups' products of one step take as many cycles as a window has columns.
// Of it, what is reached: each product reads its filters anew, so narrow windows take longer.
constexpr double kWideWindowEfficiency = 0.9;    // 224 columns and more
constexpr double kMiddleWindowEfficiency = 0.8;  // 160
constexpr double kNarrowWindowEfficiency = 0.7;
constexpr double kIeeeWindowEfficiency = 0.82;  // six products read the same
// What the terms below leave out; 16-bit products are done sooner, and all else shows.
constexpr double kWindowSlack = 1.25;
constexpr double kHalfWindowSlack = 1.5;
constexpr double kWindowFilterBytes = 14;   // packed filters per cycle, from L2
constexpr double kWindowLineBytes = 24;     // the same of lines
constexpr double kWindowLineCycles = 5000;  // launching the kernel that writes them
// Storing is done by warps of its own, 64 filters at a time; per column, where pixels are runs,
// where channels lie together, elsewhere. Handing sums over takes the multiplying warps some time.
constexpr double kWindowRunCycles = 16;
constexpr double kWindowWideCycles = 40;
constexpr double kWindowScatterCycles = 70;
constexpr double kWindowStageCycles = 6;
constexpr double kWindowTileCycles = 2000;     // filling and draining the pipeline
constexpr double kWindowLaunchCycles = 10000;  // first tile's latency, launch, packing
constexpr double kWindowMemoryBytes = 17;      // device memory, per cycle
constexpr double kWindowPartialBytes = 20;     // partial sums, written and read again

}  // namespace

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const WindowShape& shape) {
  const int64_t taps = shape.rows_axis.taps * shape.columns_axis.taps;
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = ceil_div(int64_t{shape.channels} * operand_bytes(shape.math), 32) /
                       static_cast<double>(shape.splits);
  const int products = shape.math == TensorMath::kIeee ? 6 : 1;
  const double efficiency = shape.math == TensorMath::kIeee ? kIeeeWindowEfficiency
                            : shape.columns >= 224          ? kWideWindowEfficiency
                            : shape.columns >= 160          ? kMiddleWindowEfficiency
                                                            : kNarrowWindowEfficiency;
  const double multiply = steps * static_cast<double>(taps) * products * shape.columns / efficiency;
  const double load =
      chunks * shape.positions() * shape.lane_bytes * shape.planes() / kWindowLineBytes;
  const double filters = shape.resident ? 0
                                        : chunks * static_cast<double>(taps) * shape.filter_groups *
                                              shape.planes() * kWindowFilters * shape.lane_bytes /
                                              kWindowFilterBytes;
  const bool runs = shape.strips == 1 && shape.columns_axis.count % 2 == 0 &&
                    problem.y_strides.c != 1 && shape.rows * shape.pitch >= kMinRunPositions;
  const bool wide = problem.y_strides.c == 1 && problem.K > 1;
  const double store = shape.columns * (runs   ? kWindowRunCycles
                                        : wide ? kWindowWideCycles
                                               : kWindowScatterCycles);
  const double work = std::max({multiply + kWindowStageCycles * shape.columns, load, filters});
  const double tile = std::max(work, store) + kWindowTileCycles;
  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  const int64_t batches = ceil_div(problem.N, std::max(1, shape.images));
  double cycles = static_cast<double>(batches * ceil_div(tiles, caps.sm_count)) * tile;
  cycles = std::max(cycles, count_bytes(problem) / caps.sm_count / kWindowMemoryBytes);
  cycles += kWindowLaunchCycles;
  cycles += 2 * static_cast<double>(shape.partial_bytes) / caps.sm_count / kWindowPartialBytes;
  const double source_bytes =
      static_cast<double>(problem.N * problem.C * problem.H * problem.W) * size_of(problem.dtype);
  cycles += kWindowLineCycles + (source_bytes + static_cast<double>(batches * shape.line_bytes)) /
                                    caps.sm_count / kWindowMemoryBytes;
  const double slack = size_of(problem.dtype) == 2 ? kHalfWindowSlack : kWindowSlack;
  return slack * cycles / (kWindowClockGhz * 1e3);
}

}  // namespace convx
