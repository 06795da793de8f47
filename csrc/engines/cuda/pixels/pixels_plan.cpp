// Plans of cuda_pixels: the tiles of its wgmma kernels with their costs, and what the engine
// refuses.
#include <algorithm>
#include <optional>

#include "core/arithmetic.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

constexpr int kTileAlignment = 1024;
constexpr int kMaxFilterStages = 16;
constexpr int kMaxSourceStages = 4;
constexpr int64_t kFilterStageBytes = 16384;  // target size of a stage of filters

bool fit_shared_memory(const ConvProblem& problem, const DeviceCaps& caps, PixelShape& shape) {
  const int64_t window = shape.window_pixels();
  const int64_t tables =
      4 * (int64_t{shape.steps} * 4 * shape.table_depth() + 2 * window + shape.entries);
  shape.staging_offset = static_cast<int>(round_up(kPixelBarrierBytes + tables, 128));
  const int64_t staging = 2 * kStoreFilters * staging_elements(static_cast<int>(window), 4) * 4;
  shape.source_offset = static_cast<int>(round_up(shape.staging_offset + staging, 128));
  const int64_t stage = shape.source_stage_bytes;
  const int64_t step = shape.step_bytes;
  const int64_t stages_per_chunk =
      ceil_div(shape.steps, std::max<int64_t>(1, kFilterStageBytes / step));
  shape.stage_steps = static_cast<int>(ceil_div(shape.steps, stages_per_chunk));
  const int64_t filter_stage = shape.stage_steps * step;
  const int64_t all_filter_stages = ceil_div(shape.steps, shape.stage_steps) * shape.chunks;
  const bool one_tile = shape.filter_tiles * problem.groups == 1;

  const int64_t room = caps.shared_bytes_per_block - shape.source_offset - 2 * kTileAlignment;
  const int64_t left = room - 2 * stage;
  if (left < 2 * filter_stage) return false;
  shape.resident =
      one_tile && all_filter_stages <= std::min<int64_t>(kMaxFilterStages, left / filter_stage);
  int64_t filter_stages = shape.resident ? all_filter_stages : 2;
  const int64_t source_stages =
      std::min<int64_t>(kMaxSourceStages, (room - filter_stages * filter_stage) / stage);
  if (!shape.resident) {
    filter_stages = std::min<int64_t>(8, (room - source_stages * stage) / filter_stage);
  }
  shape.source_stages = static_cast<int>(source_stages);
  shape.filter_stages = static_cast<int>(filter_stages);
  shape.filter_offset =
      static_cast<int>(round_up(shape.source_offset + source_stages * stage, kTileAlignment));
  shape.shared_bytes =
      static_cast<int>(shape.filter_offset + filter_stages * filter_stage + kTileAlignment);
  shape.packed_bytes =
      problem.groups * shape.filter_tiles * int64_t{shape.chunks} * shape.steps * step;
  return shape.shared_bytes <= caps.shared_bytes_per_block &&
         shape.packed_bytes <= caps.workspace_limit;
}

// Cycles of one multiprocessor, fitted on an H200 (docs/developers/dense-layers.md).
constexpr double kPixelClockGhz = 1.7;
constexpr double kPixelMmaEfficiency = 0.9;
// Gathering and converting a step's operand of 64 pixels, by arithmetic.
constexpr double kPixelTf32Cycles = 30;
constexpr double kPixelIeeeCycles = 240;
constexpr double kPixelHalfCycles = 75;
constexpr double kPixelPairCycles = 10;  // from instruction counts, not measured
// The three producer warps: per copy of a warp, and per entry of the source table.
constexpr double kPixelCopyCycles = 8;
constexpr double kPixelStoreHalfWord = 3;  // factor: single 16-bit values go through registers
constexpr double kPixelSplitCopy = 7;      // factor: pairs go through registers and are split
// Issue slots that splitting takes from the consumers, per copy.
constexpr double kPixelSplitCycles = 12;
constexpr double kPixelEntryCycles = 4;
constexpr double kPixelChunkCycles = 300;
constexpr double kPixelEnterCycles = 250;   // consumers, per chunk
constexpr double kPixelCacheBytes = 20;     // source values and filters, bytes per cycle from L2
constexpr double kPixelStoreCycles = 0.45;  // per accumulator of a window
constexpr double kPixelScatter = 1.6;       // factor for channels_last targets
// Factor for the checks of kIeee, which may recompute accumulators.
constexpr double kPixelRecomputeChecks = 1.8;
constexpr double kPixelUnscale = 1.25;     // factor for scaled fp16; estimated
constexpr double kPixelTileCycles = 2500;  // filling and draining the pipeline
constexpr double kPixelLaunchCycles = 10000;
// Factor for 1x1 kernels, where nothing is read twice. In channels_last the many products of "ieee"
// hide it.
constexpr double kPixelTapLoads = 1.6;
constexpr double kPixelShortCopies = 1.35;  // another factor, for copies of less than 16 bytes
constexpr double kPixelMemoryBytes = 17;    // device memory, bytes per cycle
constexpr double kPixelPartialBytes = 20;   // partial sums, written and read again
constexpr double kPixelGroupSumLaunchCycles = 9300;  // see PhaseTraffic::group_cycles
// Factor on the prediction where the reduction is split: 12 layers of 7x7 to 14x21 pixels take 1.4
// to 2.2 times as long as the sum of the terms says (2026-11-19).
constexpr double kPixelSplitTiles = 1.45;
// Factor for channels_last stems with a stride of 4 or more, where a position's few channels are
// read alone: three layers take 1.3, 1.6 and 2 times as long (2026-11-19).
constexpr double kPixelWideSteps = 1.25;

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const PixelShape& shape) {
  const double element = size_of(problem.dtype);
  const Strides target = make_gather_tensors(problem).target_strides;
  const PhaseTraffic traffic(problem, shape.rows_axis, shape.columns_axis);
  const double chunks = static_cast<double>(shape.chunks) / shape.splits;
  const double steps = chunks * shape.steps;
  const int products = shape.math == TensorMath::kIeee       ? 6
                       : shape.math == TensorMath::kHalfIeee ? 3
                                                             : 1;
  const double gather = shape.paired                      ? kPixelPairCycles
                        : shape.math == TensorMath::kTf32 ? kPixelTf32Cycles
                        : shape.math == TensorMath::kIeee ? kPixelIeeeCycles
                                                          : kPixelHalfCycles;
  // An MMA of 64 pixels takes half a cycle per filter; two warpgroups share the tensor cores.
  const double multiply =
      kPixelEnterCycles * chunks +
      steps * 2 * shape.blocks * (products * shape.filters / 2 / kPixelMmaEfficiency + gather);
  const double copies = static_cast<double>(shape.entries) * shape.chunk_channels /
                        (shape.channels_last ? shape.run : 1);
  const double per_copy = kPixelCopyCycles * (shape.paired              ? kPixelSplitCopy
                                              : shape.run * element < 4 ? kPixelStoreHalfWord
                                                                        : 1);
  const double split = shape.paired ? chunks * copies / 32 * kPixelSplitCycles : 0;
  const double load =
      kPixelEntryCycles * shape.entries + chunks * (kPixelChunkCycles + copies / 32 * per_copy);
  const double loaded =
      shape.source_stage_bytes / (shape.paired ? pair_bytes(shape.math) / 2 / element : 1);
  const double bytes = chunks * loaded + (shape.resident ? 0 : steps * shape.step_bytes);
  const double store = kPixelStoreCycles * (target.c == 1 ? kPixelScatter : 1) *
                       (shape.math == TensorMath::kIeee ? kPixelRecomputeChecks
                        : is_half(shape.math)           ? kPixelUnscale
                                                        : 1) *
                       shape.window_pixels() * shape.filters;
  const bool single_tap = problem.R * problem.S == 1 && (products == 1 || !shape.channels_last);
  const bool short_copies = products == 1 && shape.run * element < 16;
  const double waits = single_tap ? kPixelTapLoads * (short_copies ? kPixelShortCopies : 1) : 1;
  const double tile = std::max({multiply + split + store, load, bytes / kPixelCacheBytes}) * waits +
                      kPixelTileCycles;
  const int64_t tiles = shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits;
  double cycles = static_cast<double>(ceil_div(tiles, caps.sm_count)) * tile;
  cycles = std::max(cycles, traffic.bytes(problem) / caps.sm_count / kPixelMemoryBytes);
  cycles += kPixelLaunchCycles;
  cycles += 2 * static_cast<double>(shape.partial_bytes) / caps.sm_count / kPixelPartialBytes;
  cycles += traffic.group_cycles(problem, caps.sm_count, shape.packed_bytes, shape.splits,
                                 kPixelGroupSumLaunchCycles);
  if (shape.splits > 1) cycles *= kPixelSplitTiles;
  const bool wide_steps =
      std::min(shape.rows_axis.source_step, shape.columns_axis.source_step) >= 4;
  const bool channels_adjacent = make_gather_tensors(problem).source_strides.c == 1;
  if (shape.folded && channels_adjacent && wide_steps) cycles *= kPixelWideSteps;
  return cycles / (kPixelClockGhz * 1e3);
}

// Every MMA and every accumulator takes its time.
double bound_us(const ConvProblem& problem, const DeviceCaps& caps) {
  if (problem.pass == Pass::kWeightGrad || problem.N == 0) return 0;
  const GatherTensors view = make_gather_tensors(problem);
  const TensorMath math = tensor_math(problem);
  // Only folded taps may be multiplied as scaled fp16, or gathered in pairs.
  const bool may_fold = view.source_channels <= kMostFoldedChannels;
  const bool may_pair = may_fold && problem.dtype == DType::kFloat32;
  const double products = math != TensorMath::kIeee ? 1 : may_pair ? 3 : 6;
  const double gather = may_pair                    ? kPixelPairCycles
                        : math == TensorMath::kTf32 ? kPixelTf32Cycles
                        : math == TensorMath::kIeee ? kPixelIeeeCycles
                                                    : kPixelHalfCycles;
  const int depth = may_pair ? step_depth(TensorMath::kHalfTf32) : step_depth(math);
  const auto channels = static_cast<double>(view.source_channels);
  const double steps =
      may_fold ? channels / depth : static_cast<double>(ceil_div(view.source_channels, depth));
  const auto targets = static_cast<double>(view.target_channels);
  // Blocks of 64 pixels, with and without their taps.
  const auto filters =
      static_cast<double>(problem.K * std::max<int64_t>(problem.channels_per_group(), 1));
  const auto groups = static_cast<double>(problem.groups);
  const double block_taps = groups * count_gather_products(problem) / filters / kPixelBlock;
  const double blocks =
      groups * static_cast<double>(problem.N * view.target_h * view.target_w) / kPixelBlock;
  const double multiply =
      block_taps * steps * (products * targets / 2 / kPixelMmaEfficiency + gather);
  const double store = blocks * targets * kPixelStoreCycles * kPixelBlock / 2;
  const double cycles = (multiply + store) / std::max(caps.sm_count, 1) + kPixelLaunchCycles;
  return cycles / (kPixelClockGhz * 1e3) * kBoundFactor;
}

std::optional<PixelShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                    TensorMath math, const GatherPhase& phase, double) {
  PixelShape shape =
      fit_pixel_shape(problem, caps, phase.rows, phase.columns, make_wgmma_tiling(math));
  if (shape.filters == 0) return {};
  return shape;
}

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma_gather(p, caps); !refusal.empty()) return refusal;
  if (std::string unreached = refuse_unreached_pixels(p); !unreached.empty()) return unreached;
  return refuse_large_images(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps,
                       const SearchLimits& limits) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaPixels;
  const auto take = [&](PixelShape shape, int64_t before) {
    plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes =
        std::max(plan.workspace_bytes, before + shape.packed_bytes + shape.partial_bytes);
    return make_pixel_fit(problem, std::move(shape));
  };
  std::optional<PhasedPlan<PixelFit>> phases = plan_phases<PixelFit>(
      plan, problem, caps, make_gather_phases(problem), fit_shape, take, limits.give_up_us);
  if (!phases) {
    return Refusal{"no tile fits in shared memory, or its images lie 2^31 elements apart"};
  }
  plan.geometry = make_geometry(PixelsPlan{std::move(*phases)});
  return plan;
}

}  // namespace

PixelTiling make_wgmma_tiling(TensorMath math) {
  return visit_math(math, [&]<TensorMath kMath>() {
    return PixelTiling{math, wgmma_tiles<kMath>(), fit_shared_memory, predict_microseconds};
  });
}

void PixelShape::describe(Text& out) const {
  out << "tile " << 2 * window_pixels() << " pixels x " << filters << " filters";
  describe_stages(out, source_stages, resident ? 0 : filter_stages);
  if (resident) out << ", resident filters";
  describe_split(out, splits);
  out << (bands ? ", bands of " : ", segments of ") << count_text(staged_rows, "row");
  if (folded) out << (paired ? ", taps folded in pairs" : ", taps folded");
  out << ", " << name_of(math);
}

Engine cuda_pixels_engine() {
  return {.id = EngineId::kCudaPixels,
          .name = "cuda_pixels",
          .consider = consider,
          .bound_us = bound_us,
          .typical_ratio = 1.9,
          .separate_pass_us = pass_us_unless_relu};
}

}  // namespace convx
