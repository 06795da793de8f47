#include "engines/cuda/direct/weight_grad_geometry.h"

#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "engines/cuda/direct/direct_costs.h"
#include "engines/cuda/direct/gather_geometry.h"
#include "planning/dense_pixels.h"
#include "planning/device_rates.h"

namespace convx {
namespace {

constexpr int64_t kChunkPixels = 16;
constexpr int64_t kMinSplitPixels = 1024;
constexpr int64_t kMinBlockPixels = 256;  // the same for weight_grad_pixels.cu
constexpr int64_t kMaxSplit = 512;

// Resident blocks per multiprocessor.
int64_t count_resident(const WeightGradConfig& config, DType dtype) {
  if (config.kernel == WeightGradKernel::kPixels) {
    return count_pixel_blocks(config.filters, size_of(dtype));
  }
  return config.kernel == WeightGradKernel::kWide ? 512 / config.threads : 3;
}

// Whether weight_grad_pixels.cu computes the problem: its lanes read 16 bytes of adjacent
// channels.
bool has_pixel_units(const ConvProblem& p) {
  const int64_t unit = 16 / size_of(p.dtype);
  const auto fits = [&](int64_t extent, int64_t stride) {
    return extent == 1 || stride % unit == 0;
  };
  return p.taps() == 1 && p.dtype != DType::kFloat64 && p.x_strides.c == 1 &&
         p.channels_per_group() % unit == 0 && fits(p.N, p.x_strides.n) &&
         fits(p.H, p.x_strides.h) && fits(p.W, p.x_strides.w);
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

// The split where memory limits: the blocks that multiprocessors hold, with enough pixels for each.
int64_t choose_pixel_split(int64_t tiles, int64_t pixels, int64_t wave) {
  const int64_t most = std::clamp<int64_t>(pixels / kMinBlockPixels, 1, kMaxSplit);
  return std::clamp<int64_t>(wave / tiles, 1, most);
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
  const bool wide = config.kernel == WeightGradKernel::kWide;
  const double products = wide ? 64.0 : config.filters * config.columns;
  // Per pixel of the reduction (wide), or per pixel of a thread (narrow).
  double issue;
  if (wide) {
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
  const double resident = static_cast<double>(count_resident(config, p.dtype));
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

// The time of weight_grad_pixels.cu: x is read once per tile of filters.
void estimate_pixel_time(WeightGradShape& shape, const ConvProblem& p, const DeviceCaps& caps) {
  const WeightGradConfig& config = kWeightGradConfigs[shape.config];
  const double unit = 16.0 / static_cast<double>(size_of(p.dtype));
  const double pixels = static_cast<double>(p.N * p.P * p.Q);
  // Issue slots of a warp for kPixelColumns channels of its pixels.
  const double widening = p.dtype == DType::kFloat32 ? 0 : unit;
  const double issue = kPixelLoadIssue * (2 + config.filters) + config.filters * unit + widening +
                       (has_dense_pixels(p) ? kPixelLocateIssue : kPixelWalkIssue);
  const double warps = pixels * kPixelColumns / unit / 32 * static_cast<double>(shape.tiles);
  const DeviceRates rates = rates_of(caps);
  const double arithmetic = warps * issue / kDirectIssuePerCycle / std::max(caps.sm_count, 1) /
                            (kDirectCyclesPerUs * rates.multiply);
  const double element_bytes = static_cast<double>(size_of(p.dtype));
  const double x_bytes = element_bytes * pixels * static_cast<double>(p.C);
  const double y_bytes = element_bytes * pixels * static_cast<double>(p.K);
  const double bytes = static_cast<double>(shape.filter_tiles) * x_bytes +
                       static_cast<double>(shape.column_tiles) * y_bytes;
  const double near = find_near_share(x_bytes + y_bytes);
  const double memory =
      bytes * (near / kPixelNearBytesPerUs + (1 - near) / kPixelFarBytesPerUs) / rates.memory;
  const double wave = static_cast<double>(caps.sm_count * count_resident(config, p.dtype));
  const double idle = std::max(1.0, wave / static_cast<double>(shape.tiles * shape.split));
  const double iterations = std::ceil(static_cast<double>(shape.pixels_per_split) /
                                      (kPixelTogether * config.threads * unit / kPixelColumns));
  shape.microseconds =
      kPixelLaunchUs + std::max({arithmetic * idle, memory * idle, kPixelIterationUs * iterations});
}

// The shape without transposition.
std::optional<WeightGradShape> fit_config(const ConvProblem& problem, const DeviceCaps& caps,
                                          int config) {
  const WeightGradConfig& candidate = kWeightGradConfigs[config];
  const bool by_pixels = candidate.kernel == WeightGradKernel::kPixels;
  if (candidate.float32_only && problem.dtype != DType::kFloat32) return {};
  if (by_pixels && !has_pixel_units(problem)) return {};
  const int64_t pixels = problem.N * problem.P * problem.Q;
  const int64_t columns = problem.channels_per_group() * problem.taps();
  WeightGradShape shape;
  shape.config = config;
  shape.filter_tiles = ceil_div(problem.filters_per_group(), candidate.filters);
  shape.column_tiles = ceil_div(columns, candidate.columns);
  shape.tiles = problem.groups * shape.filter_tiles * shape.column_tiles;
  const int64_t wave = std::max(caps.sm_count, 1) * count_resident(candidate, problem.dtype);
  shape.split = by_pixels ? choose_pixel_split(shape.tiles, pixels, wave)
                          : choose_split(shape.tiles, pixels, wave);
  fit_workspace(shape, problem, caps);
  const int64_t share = ceil_div(std::max<int64_t>(pixels, 1), shape.split);
  shape.pixels_per_split = ceil_div(share, kChunkPixels) * kChunkPixels;
  by_pixels ? estimate_pixel_time(shape, problem, caps) : estimate_time(shape, problem, caps);
  return shape;
}

}  // namespace

std::optional<WeightGradShape> fit_weight_grad_config(const ConvProblem& problem,
                                                      const DeviceCaps& caps, int config) {
  std::optional<WeightGradShape> best = fit_config(problem, caps, config);
  if (kWeightGradConfigs[config].kernel != WeightGradKernel::kPixels) return best;
  const std::optional<ConvProblem> transposed = transpose_weight_grad(problem);
  if (!transposed) return best;
  std::optional<WeightGradShape> other = fit_config(*transposed, caps, config);
  if (!other || (best && best->microseconds <= other->microseconds)) return best;
  other->is_transposed = true;
  return other;
}

WeightGradShape fit_weight_grad_shape(const ConvProblem& problem, const DeviceCaps& caps) {
  std::optional<WeightGradShape> best;
  for (int i = 0; i < kWeightGradConfigCount; ++i) {
    const std::optional<WeightGradShape> shape = fit_weight_grad_config(problem, caps, i);
    if (shape && (!best || shape->microseconds < best->microseconds)) best = shape;
  }
  return *best;
}

WeightGradFit make_weight_grad_fit(const ConvProblem& described, const WeightGradShape& shape) {
  const ConvProblem problem = shape.is_transposed ? *transpose_weight_grad(described) : described;
  WeightGradFit fit{shape, {}};
  WeightGradParams& p = fit.params;
  p.x_strides = problem.x_strides, p.y_strides = problem.y_strides, p.w_strides = problem.w_strides;
  p.pixels = problem.N * problem.P * problem.Q;
  p.pixels_per_split = shape.pixels_per_split;
  p.H = narrow(problem.H), p.W = narrow(problem.W);
  p.P = narrow(problem.P), p.Q = narrow(problem.Q);
  p.R = narrow(problem.R), p.S = narrow(problem.S);
  p.channels = narrow(problem.channels_per_group());
  p.filters = narrow(problem.filters_per_group());
  p.stride_h = narrow(problem.stride.h), p.stride_w = narrow(problem.stride.w);
  p.dilation_h = narrow(problem.dilation.h), p.dilation_w = narrow(problem.dilation.w);
  p.pad_top = narrow(problem.pad.top), p.pad_left = narrow(problem.pad.left);
  p.filter_tiles = narrow(shape.filter_tiles), p.column_tiles = narrow(shape.column_tiles);
  p.splits = narrow(shape.split);
  p.direct = shape.direct;
  p.by_P = FastDivmod(problem.P), p.by_Q = FastDivmod(problem.Q);
  if (has_dense_pixels(problem)) {
    p.x_pitch = find_x_pitch(problem), p.y_pitch = find_y_pitch(problem);
  }
  return fit;
}

}  // namespace convx
