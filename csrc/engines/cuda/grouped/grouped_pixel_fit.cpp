#include <algorithm>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda/grouped/grouped_planning.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

constexpr int64_t kWeightBytes = int64_t{48} << 10;  // per block, so that several are resident
constexpr int64_t kMostQuads = 32;
constexpr int64_t kFewestQuads = 4;  // per block; fewer would use sectors only in part
constexpr int64_t kBlocksPerSm = 8;

// Cycles of a warp for one tap, four source channels and one strip, measured on an H200: twice the
// issue time of its instructions.
constexpr double kStepCycles = 175;
// Latency of one such step if no other warp fills it, and of staging a vector of weights: a layer
// with one image of 28 x 28, 512 channels in 32 groups and stride 2 took 40 us in bf16 (H200,
// 2026-11-18), 36 steps and 12 vectors per thread.
constexpr double kStepLatency = 1400;
constexpr double kWeightLatency = 900;
constexpr double kCyclesPerUs = 1700;
constexpr double kBytesPerUs = 1.7e6;
constexpr double kLaunchUs = 4;

int64_t quad_weight_bytes(const ConvProblem& p, int64_t sources) {
  return p.taps() * sources * kPixelQuad * static_cast<int64_t>(sizeof(float));
}

}  // namespace

std::string refuse_grouped_pixels(const ConvProblem& p) {
  const bool beside = (p.C == 1 || p.x_strides.c == 1) && (p.K == 1 || p.y_strides.c == 1);
  if (!beside) return "neither columns nor channels are neighbours in memory of input and output";
  if (p.channels_per_group() % kPixelQuad != 0 || p.filters_per_group() % kPixelQuad != 0) {
    return "of channels_last it takes groups whose channels and filters are multiples of 4";
  }
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  const GatherTensors view = make_gather_tensors(p);
  if (kFewestQuads * quad_weight_bytes(p, view.source_channels) > kWeightBytes &&
      p.groups * view.target_channels / kPixelQuad >= kFewestQuads) {
    return "the weights of four times four filters do not fit in shared memory";
  }
  return quad_weight_bytes(p, view.source_channels) > kWeightBytes
             ? "the weights of four filters do not fit in shared memory"
             : "";
}

GroupedPixelFit fit_grouped_pixels(const ConvProblem& problem, const DeviceCaps& caps) {
  const GatherView view = make_gather_view(problem);
  GroupedPixelFit fit;
  GroupedPixelParams& p = fit.params;
  set_grouped_tensors(problem, view, p);
  p.source_w = view.source_strides.w, p.target_w = view.target_strides.w;
  p.weight_r = problem.w_strides.h, p.weight_s = problem.w_strides.w;
  p.row = make_cuda_axis(make_gather_axis(view.rows[0], false));
  p.column = make_cuda_axis(make_gather_axis(view.columns[0], false));
  p.quads = narrow(problem.groups * view.target_channels / kPixelQuad);
  const int64_t quad_bytes = quad_weight_bytes(problem, view.source_channels);
  const int64_t block_quads =
      std::min<int64_t>({p.quads, kMostQuads, std::max<int64_t>(kWeightBytes / quad_bytes, 1)});
  p.block_quads = narrow(block_quads);
  p.slots = narrow(kPixelThreads / block_quads);
  const int64_t row_strips = ceil_div(p.column.count, kPixelStrip);
  p.strips = narrow(problem.N * p.row.count * row_strips);
  p.by_block_quads = FastDivmod(block_quads);
  p.by_row_strips = FastDivmod(row_strips);
  p.by_rows = FastDivmod(p.row.count);
  p.quad_blocks = narrow(ceil_div(p.quads, block_quads));
  const int64_t sms = std::max(caps.sm_count, 1);
  fit.blocks = p.quad_blocks * std::clamp<int64_t>(ceil_div(kBlocksPerSm * sms, p.quad_blocks), 1,
                                                   ceil_div(p.strips, p.slots));
  fit.shared_bytes = block_quads * quad_bytes;
  const int64_t element = size_of(problem.dtype);
  p.aligned = fit_unit(element, p.source_n, p.source_h, p.source_w, p.target_n, p.target_h,
                       p.target_w) >= kPixelQuad;
  const DeviceRates rates = rates_of(caps);
  const double steps = static_cast<double>(p.strips) * p.quads / 32 *
                       static_cast<double>(problem.taps()) * p.source_channels / kPixelQuad;
  const double busy = steps * kStepCycles / static_cast<double>(sms);
  // The steps of one thread follow each other.
  const int64_t rounds = ceil_div(int64_t{p.strips}, fit.blocks / p.quad_blocks * p.slots);
  const auto thread_steps =
      static_cast<double>(rounds * problem.taps() * p.source_channels / kPixelQuad);
  const auto thread_weights = static_cast<double>(
      ceil_div(problem.taps() * p.source_channels * block_quads, int64_t{kPixelThreads}));
  const double chain = thread_steps * kStepLatency + thread_weights * kWeightLatency;
  const double work = std::max(busy, chain) / (kCyclesPerUs * rates.clock);
  fit.microseconds =
      kLaunchUs + std::max(work, count_bytes(problem) / (kBytesPerUs * rates.memory));
  return fit;
}

GroupedPixelParams make_grouped_pixel_params(const ConvProblem& problem, const GroupedPixelFit& fit,
                                             const Buffers& buffers) {
  GroupedPixelParams p = fit.params;
  set_gather_buffers(p, problem, buffers);
  p.aligned = p.aligned && is_aligned(p.source, problem.dtype, kPixelQuad) &&
              is_aligned(p.target, problem.dtype, kPixelQuad);
  return p;
}

}  // namespace convx
