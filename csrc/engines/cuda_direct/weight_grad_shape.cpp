#include "engines/cuda_direct/weight_grad_shape.h"

#include <algorithm>
#include <cmath>

#include "engines/cuda_direct/cuda_direct_costs.h"
#include "engines/cuda_direct/gather_shape.h"
#include "engines/device_rates.h"

namespace convx {
namespace {

constexpr int64_t kChunkPixels = 16;
constexpr int64_t kMinSplitPixels = 1024;
constexpr int64_t kMaxSplit = 512;

// Resident blocks per multiprocessor.
int64_t count_resident(const WeightGradConfig& config) {
  return config.wide ? 512 / config.threads : 3;
}

// Returns the number of split-K slices that fills whole waves best; the smallest among equals.
int64_t choose_split(int64_t tiles, int64_t pixels, int64_t wave) {
  const int64_t most = std::clamp<int64_t>(pixels / kMinSplitPixels, 1, kMaxSplit);
  int64_t best = 1;
  double best_time = 0;
  for (int64_t split = 1; split <= most; ++split) {
    const double waves = static_cast<double>(ceil_div(tiles * split, wave));
    // A block costs its share of the pixels and a little for its start and the second pass.
    const double time = waves * (static_cast<double>(pixels) / static_cast<double>(split) + 256) +
                        8.0 * static_cast<double>(split);
    if (split == 1 || time < best_time * 0.995) {
      best = split;
      best_time = time;
    }
    if (tiles * split > 4 * wave) break;
  }
  return best;
}

void fit_workspace(WeightGradShape& shape, const ConvProblem& p, const DeviceCaps& caps) {
  const WeightGradConfig& config = kWeightGradConfigs[shape.config];
  const int64_t tile_bytes = int64_t{config.filters} * config.columns * accumulate_bytes(p.dtype);
  const int64_t slots = caps.workspace_limit / tile_bytes;  // partial tiles that fit
  if (slots < 1) {
    shape.direct = true;
    shape.split = 1;
    shape.tiles_per_launch = shape.tiles;
    return;
  }
  shape.split = std::min(shape.split, slots);
  shape.tiles_per_launch = std::min(shape.tiles, slots / shape.split);
  shape.workspace_bytes = shape.split * shape.tiles_per_launch * tile_bytes;
}

void estimate_time(WeightGradShape& shape, const ConvProblem& p, const DeviceCaps& caps) {
  const WeightGradConfig& config = kWeightGradConfigs[shape.config];
  const double threads = config.threads;
  const double products = config.wide ? 64.0 : config.filters * config.columns;
  // Per pixel of the reduction (wide), or per pixel of a thread (narrow).
  double issue;
  if (config.wide) {
    issue = kWideSlowdown * (products + 4 * kDirectLoadIssue +
                             kWeightGradGatherIssue * (config.filters + config.columns) / threads);
  } else {
    issue = kNarrowSlowdown *
            (products + kNarrowTapIssue * config.columns + 4.0 * config.filters + 20) / threads;
  }
  if (p.dtype == DType::kFloat64) issue *= float64_penalty(caps);
  const double block_cycles =
      issue * static_cast<double>(shape.pixels_per_split) * threads / 32 / kDirectIssuePerCycle;
  const double sms = std::max(caps.sm_count, 1);
  const double blocks = static_cast<double>(shape.tiles * shape.split);
  const double resident = static_cast<double>(count_resident(config));
  const double waves = std::floor(blocks / (sms * resident));
  const double rest = std::ceil((blocks - waves * sms * resident) / sms);
  const double lonely = rest > 0 ? std::max(1.0, kDirectBusyWarps / (rest * threads / 32)) : 1.0;
  const DeviceRates rates = rates_of(caps);
  const double arithmetic =
      (waves * resident + rest * lonely) * block_cycles / (kDirectCyclesPerUs * rates.multiply);
  const double bytes_per_us = kDirectBytesPerUs * rates.memory;
  const double memory = count_bytes(p) / bytes_per_us;
  const double partial = 2.0 * static_cast<double>(shape.workspace_bytes) / bytes_per_us;
  shape.microseconds = 2 * kDirectLaunchUs + std::max(arithmetic, memory) + partial;
}

}  // namespace

WeightGradShape fit_weight_grad_shape(const ConvProblem& problem, const DeviceCaps& caps) {
  const int64_t pixels = problem.N * problem.P * problem.Q;
  const int64_t columns = problem.channels_per_group() * problem.taps();
  WeightGradShape best;
  for (int i = 0; i < kWeightGradConfigCount; ++i) {
    const WeightGradConfig& candidate = kWeightGradConfigs[i];
    if (candidate.float32_only && problem.dtype != DType::kFloat32) continue;
    WeightGradShape shape;
    shape.config = i;
    shape.filter_tiles = ceil_div(problem.filters_per_group(), candidate.filters);
    shape.column_tiles = ceil_div(columns, candidate.columns);
    shape.tiles = problem.groups * shape.filter_tiles * shape.column_tiles;
    const int64_t wave = std::max(caps.sm_count, 1) * count_resident(candidate);
    shape.split = choose_split(shape.tiles, pixels, wave);
    fit_workspace(shape, problem, caps);
    const int64_t share = ceil_div(std::max<int64_t>(pixels, 1), shape.split);
    shape.pixels_per_split = ceil_div(share, kChunkPixels) * kChunkPixels;
    estimate_time(shape, problem, caps);
    if (best.config < 0 || shape.microseconds < best.microseconds) best = shape;
  }
  return best;
}

}  // namespace convx
