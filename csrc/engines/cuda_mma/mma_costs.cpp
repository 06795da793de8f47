#include "engines/cuda_mma/mma_costs.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/device_rates.h"

namespace convx {
namespace {

// Instructions are counted in the compiled kernels; rates are an H200's (engines/device_rates.h has
// the others relative to it). Predicted, not yet fitted to measured times.
constexpr double kMmaClockGhz = 1.7;
constexpr double kMmaWarps = 8;            // of a block
constexpr double kMmaProductCycles = 1;    // of a multiprocessor, for 16 pixels by 8 filters
constexpr double kMmaHopperShare = 0.62;   // of the tensor cores' rate, without their own wgmma
constexpr double kMmaShare = 0.9;          // before, where there is nothing else
constexpr double kMmaIssuePerCycle = 2.8;  // warp instructions, of 4
constexpr double kMmaStepIssue = 30;       // of a warp and step, beside the products
constexpr double kMmaTf32Issue = 20;       // and per block of pixels: gathering, rounding
constexpr double kMmaIeeeIssue = 85;
constexpr double kMmaHalfIssue = 27;
constexpr double kMmaSharedBytes = 110;   // per cycle, of 128
constexpr double kMmaCopyIssue = 7;       // of a warp, per copy
constexpr double kMmaStoreHalfWord = 3;   // times that: single 16-bit values go through registers
constexpr double kMmaEntryIssue = 60;     // finding the place of an entry, of a warp
constexpr double kMmaStageCycles = 250;   // barrier, and filling registers anew
constexpr double kMmaCacheBytes = 28;     // source values and filters, per cycle, from L2
constexpr double kMmaStoreCycles = 0.45;  // per sum of a warpgroup's window
constexpr double kMmaMendChecks = 1.8;    // times that where sums may have to be mended
constexpr double kMmaTileCycles = 4000;   // filling and draining the pipeline
constexpr double kMmaLaunchUs = 6;
constexpr double kMmaBytesPerUs = 3.4e6;  // device memory
constexpr double kMmaPartialBytesPerUs = 4.5e6;
// On Hopper this engine is asked for by name, until it is measured against the others there.
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
