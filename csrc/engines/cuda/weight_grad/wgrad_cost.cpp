#include <algorithm>
#include <cmath>
#include <limits>

#include "core/arithmetic.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"

namespace convx {
namespace {

// Rates of an H200, fitted to timings of the suite (2026-11-18).
constexpr double kBlockCycles = 6000;      // before the first MMA, and storing partial sums
constexpr double kPackBytesPerUs = 3.5e6;  // read and written
// Packed operands of 1x1 layers that stay in L2: n32c256h14w14 k1024 in bf16 takes 26 us in all, 16
// MB of them packed (2026-11-19).
constexpr double kPackedNear = 24e6, kPackedNearBytesPerUs = 8e6;
// Tensors that are read and converted, where nothing else takes time (add_memory).
constexpr double kStreamBytesPerUs = 4.4e6;
// 16-bit tensors that are read in place: kb87pw takes 1,422 us for 6.4 GB.
constexpr double kPixelBytesPerUs = 4.5e6;
// What each of all multiprocessors copies from L2 for single taps, which need neither a halo nor
// mirrored stages: n32c1024h50w84 k2048 with stride 2 takes 209 us for 263 stages of 48 KiB.
constexpr double kPixelCopyBytesPerCycle = 40;
constexpr double kReduceBytesPerUs = 5e6;
constexpr double kReduceUs = 6;
constexpr double kReduceElementsPerUs = 2.9e5;
// The kernel of reduce_rows.cuh, fitted to eight geometries of rn_56_1x1 in TF32 (2026-11-18).
constexpr double kReduceRowsUs = 1.5;
constexpr double kReduceRowsBytesPerUs = 3e6;
constexpr double kReduceRowsElementsPerUs = 4e6;
constexpr double kLaunchUs = 3;
// For blocks that write dW themselves: two of three layers that were timed took within 3% of them.
constexpr double kStartCycles = 4500;          // before the first MMA
constexpr double kStoreCycles = 1000;          // latencies of the epilogue
constexpr double kClusterCycles = 1000;        // the same of a cluster's barriers
constexpr double kStoreCyclesPerValue = 0.15;  // that a block adds, rounds and writes
constexpr double kClusterBytesPerCycle = 14;   // from other blocks' shared memory
constexpr double kCallUs = 2;
constexpr double kSharedBytesPerCycle = 128;
// What bytes cost that a block reads after another, from L2, relative to those from memory, where
// memory limits; estimated. Without it, n32c256h200w336 k64 in bf16 had three blocks of 96 channels
// that read dY three times and X by 64 bytes: 399 us, at 71% of the memory's rate (2026-11-18).
constexpr double kRereadCost = 0.3;
// Clusters of 1 to 8 blocks that an H200 runs at the same time, where a block takes a whole
// multiprocessor (cudaOccupancyMaxActiveClusters, 2026-11-18).
constexpr int kMeasuredMultiprocessors = 132;
constexpr int kClustersAtOnce[] = {132, 66, 39, 30, 22, 17, 15, 15};

// How much longer MMAs take than their issue rate says, where so many warpgroups alternate on the
// tensor cores. Promoted accumulators are waited for after every stage, which others hide.
double mma_overhead(OperandForm form, int consumers) {
  const bool promotes = promotes_sums(form);
  return (promotes ? 1.0 : 1.05) + (promotes ? 0.35 : 0.2) / (consumers * consumers);
}

// How much longer the stages of blocks that convert take than each of their parts, where many
// tiles convert the same values: nine layers on an H200 took 1.1 to 1.37 times as long as the
// longest part (2026-11-18).
constexpr double kConvertingFactor = 1.22;
constexpr int kFewTiles = 4;

// Blocks of a single wave end at different times. On one H200 the same layer took 3% less with
// three waves, on another one 0.3% more.
constexpr double kUnevenWaves = 0.01;
// A lone consumer warpgroup waits for its own MMAs: with two, the same layer takes 2% less.
constexpr double kLoneConsumer = 0.2;

// What the converter warps take for a value. Estimated: four warps took 0.23 cycles for scaled fp16
// (2026-11-18), and the times of seven are in proportion to their instructions.
double convert_cycles(OperandForm form) {
  return form == OperandForm::kBf16x2 ? 0.105 : form == OperandForm::kBf16x3 ? 0.14 : 0.10;
}

// Clusters of so many blocks that run at the same time.
int count_clusters(const DeviceCaps& caps, int blocks) {
  return std::max(kClustersAtOnce[blocks - 1] * caps.sm_count / kMeasuredMultiprocessors, 1);
}

// Exact for whole numbers below 2^52, and faster than a division of 64-bit integers.
double ceil_ratio(double a, double b) { return std::ceil(a / b); }

}  // namespace

double mma_cycles(int columns) { return 4 + std::max(columns / 2.0, 16 + columns / 4.0); }

double count_waves(const DeviceCaps& caps, const WgradGeometry& g) {
  const double blocks = g.slice_blocks();
  return g.writes_result ? ceil_ratio(blocks, count_clusters(caps, g.slices))
                         : ceil_ratio(blocks * g.slices, caps.sm_count);
}

double fixed_cycles(const WgradGeometry& g) {
  return g.writes_result ? kStartCycles + store_cycles(g) : kBlockCycles;
}

double store_cycles(const WgradGeometry& g) {
  if (!g.writes_result) return 0;
  const double values = double{kTileFilters} * g.consumers() * g.row_tiles.channel_sets * g.columns;
  const double others = 1 - 1.0 / g.slices;  // share of the values that other blocks have
  double cycles = kStoreCycles + values / 32 + values / g.slices * kStoreCyclesPerValue;
  if (g.slices > 1) cycles += kClusterCycles + others * values * 4 / kClusterBytesPerCycle;
  return cycles;
}

double predict_sums(const ConvProblem& p, const WgradGeometry& g, int slices) {
  // All partial sums are written. Those of a filter's own group are read, a sector at least.
  const double columns = std::max(8.0, static_cast<double>(p.channels_per_group()));
  const double read = p.groups == 1 ? 1 : std::min(1.0, columns / g.atom_channels);
  const double reduced = (1 + read) / 2 * static_cast<double>(slices * g.partial_values() * 4);
  const double elements = static_cast<double>(p.K * p.channels_per_group() * p.taps());
  // The costs of the other MMA kernels were fitted with the reduction before, and their choices
  // between clusters and partial sums are measured.
  if (g.gradient_source == OperandSource::kRowBoxes && g.has_adjacent_channels()) {
    return kReduceRowsUs + reduced / kReduceRowsBytesPerUs + elements / kReduceRowsElementsPerUs;
  }
  return kReduceUs + reduced / kReduceBytesPerUs + elements / kReduceElementsPerUs;
}

double predict_reduction(const ConvProblem& p, const WgradGeometry& g) {
  return g.writes_result ? kCallUs : predict_sums(p, g, g.slices);
}

namespace {

// The stages of a block: bytes of both operands, and cycles.
struct StageCost {
  double copied, cycles;
};

StageCost cost_stage(const WgradGeometry& g, OperandForm form, bool is_single_tap) {
  const int components = count_components(form);
  const bool skips_gaps = g.images_end_in_gaps && !g.converts();
  const double mmas = (skips_gaps ? 3.5 : 4.0) * count_mmas(components) * g.consumers();
  const double mma_total = mmas * mma_cycles(g.columns) * mma_overhead(form, g.consumers());
  const double row_bytes = g.block_filter_tiles * double{kGradientRowBytes} +
                           g.block_channel_tiles * double(g.row_bytes);
  const double copied = (g.converts() ? 2 : components) * kStagePositions * row_bytes;
  const double copy_rate = is_single_tap ? kPixelCopyBytesPerCycle : kCopyBytesPerCycle;
  double cycles = std::max(mma_total, copied / copy_rate);
  if (g.converts()) {
    const double values = kStagePositions * row_bytes / 2;
    // A value is staged, read, and stored as components; MMAs read 16 positions of both operands.
    const double shared =
        values * (8 + 2 * components) + mmas * 32 * (kTileFilters + static_cast<double>(g.columns));
    const double factor = g.tiles() > kFewTiles ? kConvertingFactor : 1;
    const double made = factor * (1 + kLoneConsumer / g.consumers()) *
                        std::max(convert_cycles(form) * values, shared / kSharedBytesPerCycle);
    cycles = std::max({cycles, factor * mma_total, made});
  }
  return {copied, cycles};
}

// The time that memory takes for blocks that read a tensor in place, and so many bytes in all.
double count_memory_us(const WgradCosts& costs, const WgradGeometry& g, double read) {
  if (g.gradient_source == OperandSource::kPacked) return 0;
  const double rate = g.converts()       ? kStreamBytesPerUs
                      : g.reads_pixels() ? kPixelBytesPerUs
                                         : kPackBytesPerUs;
  const bool reads_both = g.input_source != OperandSource::kPacked;
  const double reread = reads_both ? kRereadCost * std::max(read - costs.bytes, 0.0) : 0;
  return kLaunchUs + (costs.bytes + reread) / rate;
}

double count_read_bytes(const WgradGeometry& g, const StageCost& stage) {
  return stage.copied * g.tiles() * static_cast<double>(g.stages_total);
}

// The time of blocks that memory limits, too.
double add_memory(const WgradGeometry& g, double waves, double main_us, double memory_us) {
  if (!g.converts()) return std::max(main_us, memory_us);
  // Converting blocks have no time to hide where work and memory take about equally long: kb87pw in
  // TF32 and channels_last (12.9 GB) takes 3,030 us as scaled fp16, whose work is half of that
  // time, and 3,250 as bf16x2, whose work is 0.7 of it.
  const auto cube = [](double value) { return value * value * value; };
  return std::cbrt(cube(main_us) + cube(memory_us * (1 + kUnevenWaves / waves)));
}

double predict_packing(const WgradCosts& costs, const WgradGeometry& g, double rounds) {
  const double packed =
      static_cast<double>(g.input_bytes(costs.components) + g.gradient_bytes(costs.components));
  if (packed == 0) return 0;
  // 1x1 layers are copied as they are.
  if (costs.problem.taps() == 1 && rounds == 1 && packed <= kPackedNear) {
    return kLaunchUs + (costs.input_bytes + costs.gradient_bytes) / kPixelBytesPerUs +
           packed / kPackedNearBytesPerUs;
  }
  const auto pack = [&](double read, int64_t bytes) {
    return kLaunchUs * rounds + (read + rounds * static_cast<double>(bytes)) / kPackBytesPerUs;
  };
  double us = 0;
  if (g.input_source == OperandSource::kPacked) {
    us += pack(costs.input_bytes, g.input_bytes(costs.components));
  }
  if (g.gradient_source == OperandSource::kPacked) {
    us += pack(costs.gradient_bytes, g.gradient_bytes(costs.components));
  }
  return us;
}

}  // namespace

WgradCosts::WgradCosts(const ConvProblem& p, const DeviceCaps& device, OperandForm operands)
    : problem(p),
      caps(device),
      form(operands),
      components(count_components(operands)),
      bytes(count_bytes(p)) {
  const auto element_bytes = static_cast<double>(size_of(p.dtype));
  input_bytes = element_bytes * static_cast<double>(p.N * p.C * p.H * p.W);
  gradient_bytes = element_bytes * static_cast<double>(p.N * p.K * p.P * p.Q);
}

WgradBlockCosts make_block_costs(const WgradCosts& costs, const WgradGeometry& g) {
  const bool is_single_tap = costs.problem.taps() == 1 && g.halo_stages == 0;
  const StageCost stage = cost_stage(g, costs.form, is_single_tap);
  return {stage.cycles, g.halo_stages * stage.copied / kCopyBytesPerCycle,
          count_memory_us(costs, g, count_read_bytes(g, stage))};
}

double predict_wgrad(const WgradCosts& costs, const WgradBlockCosts& block,
                     const WgradGeometry& g) {
  const ConvProblem& p = costs.problem;
  const auto round_stages = static_cast<double>(g.round_stages);
  const double rounds = ceil_ratio(static_cast<double>(g.stages_total), round_stages);
  const double stages = ceil_ratio(round_stages, g.slices);
  const double waves = count_waves(costs.caps, g);
  const double cycles = fixed_cycles(g) + block.halo_cycles + stages * block.stage_cycles;
  const double main_us = rounds * waves * cycles / (kClockGhz * 1e3);
  return add_memory(g, waves, main_us, block.memory_us) + predict_reduction(p, g) +
         predict_packing(costs, g, rounds);
}

double bound_wgrad(const WgradCosts& costs, const WgradGeometry& g, double give_up_us) {
  const ConvProblem& p = costs.problem;
  const DeviceCaps& caps = costs.caps;
  const OperandForm form = costs.form;
  const StageCost stage = cost_stage(g, form, p.taps() == 1);
  const auto stages = static_cast<double>(g.stages_total);
  const double blocks = g.slice_blocks();
  const double memory_us = count_memory_us(costs, g, count_read_bytes(g, stage));
  const double packing_us = predict_packing(costs, g, 1);
  // First as if multiprocessors were never idle, which most blocks are already too slow for.
  const double work_us =
      blocks * (kStartCycles + stages * stage.cycles) / caps.sm_count / (kClockGhz * 1e3);
  const double least_us = kBoundFactor * (kCallUs + std::max(work_us, memory_us) + packing_us);
  if (least_us >= give_up_us) return least_us;
  // A single round, without a halo.
  const auto bound = [&](double fixed, int slices, double waves) {
    const double block = fixed + ceil_ratio(stages, slices) * stage.cycles;
    return add_memory(g, waves, waves * block / (kClockGhz * 1e3), memory_us);
  };
  double us = std::numeric_limits<double>::infinity();
  for (int waves = 0; waves <= kMostSliceWaves; ++waves) {
    const int slices = count_slices(caps, waves, g);
    if (slices == 0) continue;
    const double own_waves = ceil_ratio(blocks * slices, caps.sm_count);
    us = std::min(us, bound(kBlockCycles, slices, own_waves) + predict_sums(p, g, slices));
  }
  // Clusters that write dW.
  const int most = g.converts() ? 1 : kMaxClusterSlices;
  for (int slices = 1; slices <= most; ++slices) {
    if (!promotes_sums(form) && stages > static_cast<double>(slices) * g.flush_stages) continue;
    const double waves = ceil_ratio(blocks, count_clusters(caps, slices));
    us = std::min(us, bound(kStartCycles + kStoreCycles, slices, waves) + kCallUs);
  }
  return kBoundFactor * (us + packing_us);
}

double bound_mma(const WgradCosts& costs, const WgradGeometry& g, int tap_groups) {
  const ConvProblem& p = costs.problem;
  const OperandForm form = costs.form;
  const bool skips_gaps = g.images_end_in_gaps && !g.converts();
  const int components = costs.components;
  const double mma = (skips_gaps ? 3.5 : 4.0) * count_mmas(components) * mma_cycles(g.columns) *
                     mma_overhead(form, kMostConsumers);
  // The consumers of a block share an operand at best, or both.
  const double values = kStagePositions *
                        (kGradientRowBytes + g.block_channel_tiles * g.row_bytes) / 2.0 /
                        kMostConsumers;
  const double copied = 2 * values * (g.converts() ? 2 : components) / kPixelCopyBytesPerCycle;
  const double converted = g.converts() ? convert_cycles(form) * values : 0;
  const double stage = std::max({mma, copied, converted});
  // Tiles of a filter tile's channels. With groups, all have as many as the one that needs most.
  const int filters = std::min(kTileFilters, g.filters);
  const int channels =
      p.groups == 1 ? g.packed_channels
                    : static_cast<int>(ceil_div(filters, g.group_filters)) * g.group_channels;
  const int block_channels = g.block_channel_tiles * g.atom_channels;
  const auto tiles = static_cast<double>(ceil_div(g.filters, kTileFilters) *
                                         ceil_div(channels, block_channels) * tap_groups);
  // Blocks that write dW have the shortest start and end.
  const double cycles =
      kStartCycles + kStoreCycles +
      tiles * static_cast<double>(g.stages_total) * stage / std::max(costs.caps.sm_count, 1);
  const double main_us = cycles / (kClockGhz * 1e3);
  return kBoundFactor *
         (kCallUs + std::max(main_us, count_memory_us(costs, g, 0)) + predict_packing(costs, g, 1));
}

double bound_weight_grad(const ConvProblem& p, const DeviceCaps& caps) {
  // An MMA of N columns multiplies 64 * 16 * N pairs in more than N / 2 cycles.
  constexpr double kPairsPerCycle = 2048;
  const auto images = static_cast<double>(p.N);
  // A tile of 64 filters is multiplied with all channels that its groups read; where dW is
  // transposed, the same holds for channels.
  const auto count_pairs = [&](int64_t rows, int64_t group_rows, int64_t group_columns) {
    const int64_t columns = ceil_div(kTileFilters, group_rows) * group_columns;
    return rows / kTileFilters * kTileFilters * std::min(columns, p.groups * group_columns);
  };
  const int64_t channels = p.channels_per_group(), filters = p.filters_per_group();
  const int64_t tiles =
      std::min(count_pairs(p.K, filters, channels), count_pairs(p.C, channels, filters));
  const double pairs = images * static_cast<double>(p.P * p.Q * p.taps()) *
                       static_cast<double>(std::max(p.K * channels, tiles));
  const double elements = images * static_cast<double>(p.C * p.H * p.W + p.K * p.P * p.Q);
  const double memory_us = elements * static_cast<double>(size_of(p.dtype)) / kPixelBytesPerUs;
  const double mma_us = pairs / kPairsPerCycle / std::max(caps.sm_count, 1) / (kClockGhz * 1e3);
  return kBoundFactor * (kCallUs + std::max(memory_us, mma_us));
}

}  // namespace convx
