// Plans of cuda_mma: the tiles of its mma.sync kernels with their costs, and what the engine
// refuses.
#include <algorithm>
#include <utility>

#include "core/arithmetic.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

// Approximate steps per block barrier, and stages of the filter ring; the best pipeline first.
struct Pipeline {
  int steps, stages;
};
constexpr Pipeline kPipelines[] = {{8, 3}, {8, 2}, {4, 3}, {4, 2}, {2, 3}, {2, 2}, {1, 2}};

void lay_out_rings(const Pipeline& pipeline, PixelShape& shape) {
  // Stages per group of chunks.
  const int64_t parts = std::max(1, shape.steps / pipeline.steps);
  shape.stage_chunks =
      static_cast<int>(std::clamp<int64_t>(ceil_div(pipeline.steps, shape.steps), 1, shape.chunks));
  shape.stage_steps = static_cast<int>(ceil_div(shape.stage_chunks * shape.steps, parts));
  shape.filter_stages = pipeline.stages;
  // While a stage is multiplied, stages - 1 more are loaded or in flight.
  shape.source_stages = static_cast<int>(
      std::min(ceil_div(pipeline.stages - 1,
                        ceil_div(shape.stage_chunks * shape.steps, int64_t{shape.stage_steps})) +
                   1,
               ceil_div(shape.chunks, int64_t{shape.stage_chunks})));
}

bool fit_shared_memory(const ConvProblem& problem, const DeviceCaps& caps, PixelShape& shape) {
  const int64_t window = shape.window_pixels();
  const int64_t tables =
      4 * (shape.folded ? int64_t{shape.steps} * 4 * gathered_depth(shape.math) : 0) +
      4 * (2 * window + shape.entries);
  shape.source_offset = static_cast<int>(round_up(tables, 128));
  // The epilogue stages accumulators where the rings were.
  shape.staging_offset = shape.source_offset;
  const int64_t staging = 2 * kStoreFilters * staging_elements(static_cast<int>(window), 4) * 4;
  const int64_t step = shape.step_bytes;
  shape.packed_bytes =
      problem.groups * shape.filter_tiles * int64_t{shape.chunks} * shape.steps * step;
  if (shape.packed_bytes > caps.workspace_limit) return false;

  constexpr int64_t kReserved = 1024;  // per block, reserved by CUDA
  const int64_t multiprocessor = caps.shared_bytes_per_block + kReserved;
  for (int blocks = count_mma_blocks(shape.math, shape.filters, shape.blocks); blocks >= 1;
       --blocks) {
    for (const Pipeline& pipeline : kPipelines) {
      lay_out_rings(pipeline, shape);
      const int64_t sources =
          int64_t{shape.source_stages} * shape.stage_chunks * shape.source_stage_bytes;
      const int64_t filters = int64_t{shape.filter_stages} * shape.stage_steps * step;
      const int64_t bytes = shape.source_offset + std::max(sources + filters, staging);
      if (bytes > multiprocessor / blocks - kReserved) continue;
      shape.filter_offset = static_cast<int>(shape.source_offset + sources);
      shape.shared_bytes = static_cast<int>(bytes);
      shape.blocks_per_sm = blocks;
      return true;
    }
  }
  return false;
}

// From instruction counts of the compiled kernels and an H200's rates (planning/device_rates.h
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
constexpr double kMmaRecomputeChecks = 1.8;
constexpr double kMmaTileCycles = 4000;  // filling and draining the pipeline
constexpr double kMmaLaunchUs = 6;
constexpr double kMmaBytesPerUs = 3.4e6;  // device memory
constexpr double kMmaPartialBytesPerUs = 4.5e6;

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
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

  const double copies = static_cast<double>(shape.entries) * shape.chunk_channels /
                        (shape.channels_last ? shape.run : 1);
  const double copy_issue =
      shape.run * element < 4 ? kMmaStoreHalfWord * kMmaCopyIssue : kMmaCopyIssue;
  const double load = chunks * copies / 32 * copy_issue / kMmaIssuePerCycle +
                      shape.entries / 32.0 * kMmaEntryIssue / kMmaIssuePerCycle;
  const double store =
      kMmaStoreCycles * (ieee ? kMmaRecomputeChecks : 1) * shape.window_pixels() * shape.filters;
  const double idle =
      (steps / shape.stage_steps * kMmaStageCycles + kMmaTileCycles) / shape.blocks_per_sm;
  const double bytes = chunks * shape.source_stage_bytes + steps * shape.step_bytes;
  const double tile = std::max(steps * step + load + store + idle, bytes / kMmaCacheBytes);

  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  const double cycles = static_cast<double>(ceil_div(tiles, caps.sm_count)) * tile;
  double us = cycles / (kMmaClockGhz * 1e3 * rates.clock);
  us = std::max(us, traffic.bytes(problem) / (kMmaBytesPerUs * rates.memory));
  us += kMmaLaunchUs;
  return us + 2 * static_cast<double>(shape.partial_bytes) / (kMmaPartialBytesPerUs * rates.memory);
}

PixelShape fit_phase(const ConvProblem& problem, const DeviceCaps& caps, GatherAxis rows,
                     GatherAxis columns) {
  const bool empty = rows.taps == 0 || columns.taps == 0;
  rows.taps = std::max<int64_t>(rows.taps, 1);
  columns.taps = std::max<int64_t>(columns.taps, 1);
  PixelShape shape =
      fit_pixel_shape(problem, caps, rows, columns, make_mma_tiling(tensor_math(problem), caps));
  if (empty) {  // no tap reaches these pixels: the kernel only stores zeros
    shape.chunks = 0;
    shape.splits = 1;
    shape.packed_bytes = shape.partial_bytes = 0;
  }
  // Every block computes one tile.
  shape.grid = static_cast<int>(
      std::max<int64_t>(1, shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits));
  return shape;
}

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.dtype == DType::kFloat64) return "tensor cores here take no float64";
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (std::string large = refuse_large_images(p); !large.empty()) return large;
  return refuse_many_phases(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaMma;
  std::vector<PixelFit> phases;
  for (const GatherPhase& phase : make_gather_phases(problem)) {
    PixelShape shape = fit_phase(problem, caps, phase.rows, phase.columns);
    if (shape.filters == 0) {
      return Refusal{"no tile fits in shared memory, or its images lie 2^31 elements apart"};
    }
    if (phases.empty()) {
      plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
    }
    plan.split = std::max<int64_t>(plan.split, shape.splits);
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.packed_bytes + shape.partial_bytes);
    plan.predicted_us += shape.microseconds;
    phases.push_back(make_pixel_fit(problem, std::move(shape)));
  }
  plan.geometry = make_geometry(MmaPlan{std::move(phases)});
  return plan;
}

// On Hopper the engines of wgmma were measured, and this one was not.
bool competes_on(const DeviceCaps& caps) { return caps.compute_major != 9 || !caps.wgmma; }

}  // namespace

PixelTiling make_mma_tiling(TensorMath math, const DeviceCaps& caps) {
  if (caps.wgmma) {
    return PixelTiling{math, kMmaTilesBesideWgmma, fit_shared_memory, predict_microseconds};
  }
  return visit_math(math, [&]<TensorMath kMath>() {
    return PixelTiling{math, mma_tiles<kMath>(), fit_shared_memory, predict_microseconds};
  });
}

void MmaPlan::describe(Text& out) const {
  write_counted(out, phases, "phase",
                [](Text& line, const PixelFit& phase) { phase.shape.describe(line); });
}

Engine cuda_mma_engine() {
  return {.id = EngineId::kCudaMma,
          .name = "cuda_mma",
          .consider = consider,
          .separate_pass_us = pass_us_unless_relu,
          .competes_on = competes_on};
}

}  // namespace convx
