#include "engines/cuda_window/window_costs.h"

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
// Bringing in a chunk of source values: latency, and cycles per value of one warp.
constexpr double kWindowTurnLatency = 1500;
constexpr double kWindowTurnCycles = 1.5;
constexpr double kWindowCopyCycles = 75;  // of the copy engine, per copy
constexpr double kWindowLoadLatency = 2500;
constexpr double kWindowLoadCycles = 1.2;
constexpr double kWindowFoldCycles = 5.5;
constexpr double kWindowFilterBytes = 14;  // packed filters per cycle, from L2
// Per column of a window: where sectors are written as they are, where pixels are a run, elsewhere.
constexpr double kWindowSectorCycles = 12;
constexpr double kWindowStoreCycles = 70;
constexpr double kWindowScatterCycles = 45;
constexpr double kWindowTileCycles = 2000;     // filling and draining the pipeline
constexpr double kWindowLaunchCycles = 10000;  // first tile's latency, launch, packing
constexpr double kWindowMemoryBytes = 17;      // device memory, per cycle
constexpr double kWindowPartialBytes = 20;     // partial sums, written and read again

// Cycles to bring in a chunk of channels.
double predict_chunk(const WindowShape& shape) {
  const double warps = (shape.threads - 256) / 32 - 1;
  const double values =
      static_cast<double>(shape.positions()) * std::min(shape.chunk_channels, shape.channels);
  switch (shape.load) {
    case WindowLoad::kStaged: {
      const double turn = kWindowTurnLatency + kWindowTurnCycles * values / warps;
      return std::max(turn, kWindowCopyCycles * shape.spans * shape.raw_channels() / warps);
    }
    case WindowLoad::kPlanes:
      return kWindowLoadLatency * std::max(1.0, values / (warps * 1024)) +
             kWindowLoadCycles * values / warps;
    case WindowLoad::kFolded:
      return kWindowTurnLatency + kWindowFoldCycles * values / warps;
  }
  return 0;
}

}  // namespace

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const WindowShape& shape) {
  const int64_t taps = shape.folded() ? 1 : shape.rows_axis.taps * shape.columns_axis.taps;
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = ceil_div(int64_t{shape.channels} * operand_bytes(shape.math), 32) /
                       static_cast<double>(shape.splits);
  const int products = shape.math == TensorMath::kIeee ? 6 : 1;
  const double efficiency = shape.math == TensorMath::kIeee ? kIeeeWindowEfficiency
                            : shape.columns >= 224          ? kWideWindowEfficiency
                            : shape.columns >= 160          ? kMiddleWindowEfficiency
                                                            : kNarrowWindowEfficiency;
  const double multiply = steps * static_cast<double>(taps) * products * shape.columns / efficiency;
  const double load = chunks * predict_chunk(shape);
  const double filters = shape.resident ? 0
                                        : chunks * static_cast<double>(taps) * shape.filter_groups *
                                              shape.planes() * kWindowFilters * shape.lane_bytes /
                                              kWindowFilterBytes;
  const bool flat = shape.strips == 1 && shape.pitch >= shape.columns;
  const bool sectors = flat && shape.pair_rows > 0 && problem.dtype == DType::kFloat32 &&
                       shape.columns_axis.count % 8 == 0 &&
                       shape.rows_axis.count * shape.columns_axis.count % 8 == 0;
  const double store = (sectors ? kWindowSectorCycles
                        : flat  ? kWindowStoreCycles
                                : kWindowScatterCycles) *
                       shape.columns;
  const double tile = std::max({multiply + store, load + 0.5 * store, filters}) + kWindowTileCycles;
  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  double cycles = static_cast<double>(ceil_div(tiles, caps.sm_count)) * tile;
  cycles = std::max(cycles, count_bytes(problem) / caps.sm_count / kWindowMemoryBytes);
  cycles += kWindowLaunchCycles;
  cycles += 2 * static_cast<double>(shape.partial_bytes) / caps.sm_count / kWindowPartialBytes;
  const double slack = size_of(problem.dtype) == 2 ? kHalfWindowSlack : kWindowSlack;
  return slack * cycles / (kWindowClockGhz * 1e3);
}

}  // namespace convx
