#include "engines/cuda_mma/mma_costs.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/device_rates.h"

namespace convx {
namespace {

// From instruction counts of the compiled kernels and an H200's rates (engines/device_rates.h
// scales them to other devices). Not fitted to measured times.
constexpr double kMmaClockGhz = 1.7;
constexpr double kMmaWarps = 8;          // per block
constexpr double kMmaProductCycles = 1;  // per multiprocessor, for 16 pixels by 8 filters
// Share of the tensor cores' rate that mma.sync reaches on Hopper.
constexpr double kMmaHopperShare = 0.62;
constexpr double kMmaShare = 0.9;          // share of that rate on older GPUs
constexpr double kMmaIssuePerCycle = 2.8;  // warp instructions, of at most 4
constexpr double kMmaStepIssue = 30;       // per warp and step, besides the MMAs
constexpr double kMmaTf32Issue = 20;  // added per block of 64 pixels, for gathering and rounding
constexpr double kMmaIeeeIssue = 85;
constexpr double kMmaHalfIssue = 27;
constexpr double kMmaSharedBytes = 110;   // bytes per cycle, of at most 128
constexpr double kMmaCopyIssue = 7;       // per warp and copy
constexpr double kMmaStoreHalfWord = 3;   // factor: single 16-bit values go through registers
constexpr double kMmaEntryIssue = 60;     // per warp and entry of the source table
constexpr double kMmaStageCycles = 250;   // barrier, and refilling registers
constexpr double kMmaCacheBytes = 28;     // source values and filters, bytes per cycle from L2
constexpr double kMmaStoreCycles = 0.45;  // per accumulator of a window
// Factor for the checks of kIeee, which may recompute accumulators.
constexpr double kMmaMendChecks = 1.8;
constexpr double kMmaTileCycles = 4000;  // filling and draining the pipeline
constexpr double kMmaLaunchUs = 6;
constexpr double kMmaBytesPerUs = 3.4e6;  // device memory
constexpr double kMmaPartialBytesPerUs = 4.5e6;
// Until it has been measured on Hopper, this engine runs there only if asked for by name.
constexpr double kMmaHopperHandicap = 4;

}  // namespace

double predict_mma_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                                const PixelShape& shape) {
  const DeviceRates rates = rates_of(caps);
  const bool ieee = shape.math == TensorMath::kIeee;
  const bool half = operand_bytes(shape.math) == 2 && !ieee;
  const double element = static_cast<double>(size_of(problem.dtype));
  const PhaseTraffic traffic(problem, shape.rows_axis, shape.columns_axis);
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = chunks * shape.steps;
  const double planes = count_planes(shape.math);

  // One step of all warps, in cycles of this device's clock.
  const double products = kMmaWarps * shape.blocks * shape.filters / 8 * (ieee ? 6 : 1);
  const double share = caps.compute_major >= 9 ? kMmaHopperShare : kMmaShare;
  const double multiply = products * kMmaProductCycles * rates.clock / rates.tensor / share;
  const double gather = ieee ? kMmaIeeeIssue : half ? kMmaHalfIssue : kMmaTf32Issue;
  const double beside = kMmaStepIssue + shape.blocks * gather;
  const double issue = (products + kMmaWarps * beside) / kMmaIssuePerCycle;
  const double gathers = shape.blocks * (ieee || (half && !shape.channels_last) ? 8 : 4);
  const double shared =
      kMmaWarps * (gathers * 128 + shape.filters * planes * kStepBytes) / kMmaSharedBytes;
  const double step = std::max({multiply, issue, shared});

  const double copies = static_cast<double>(shape.entries()) * shape.chunk_channels /
                        (shape.channels_last ? shape.vector : 1);
  const double copy_issue =
      shape.vector * element < 4 ? kMmaStoreHalfWord * kMmaCopyIssue : kMmaCopyIssue;
  const double load = chunks * copies / 32 * copy_issue / kMmaIssuePerCycle +
                      shape.entries() / 32.0 * kMmaEntryIssue / kMmaIssuePerCycle;
  const double store =
      kMmaStoreCycles * (ieee ? kMmaMendChecks : 1) * shape.window_pixels() * shape.filters;
  const double idle =
      (steps / shape.stage_steps * kMmaStageCycles + kMmaTileCycles) / shape.blocks_per_sm;
  const double bytes = chunks * shape.source_stage_bytes + steps * shape.step_bytes();
  const double tile = std::max(steps * step + load + store + idle, bytes / kMmaCacheBytes);

  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  const double cycles = static_cast<double>(ceil_div(tiles, caps.sm_count)) * tile;
  double us = cycles / (kMmaClockGhz * 1e3 * rates.clock);
  us = std::max(us, traffic.bytes(problem) / (kMmaBytesPerUs * rates.memory));
  us += kMmaLaunchUs;
  us += 2 * static_cast<double>(shape.partial_bytes) / (kMmaPartialBytesPerUs * rates.memory);
  return caps.compute_major == 9 ? kMmaHopperHandicap * us : us;
}

}  // namespace convx
