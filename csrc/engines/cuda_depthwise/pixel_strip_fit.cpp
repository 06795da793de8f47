#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda_depthwise/cuda_depthwise_costs.h"
#include "engines/cuda_depthwise/depthwise_fit.h"
#include "engines/cuda_staging.h"

namespace convx {
namespace {

// Returns whether the kernel serves the problem. It loads and stores four channels as one vector.
bool matches(const ConvProblem& problem, const DepthwiseTensors& t) {
  const auto slides = [&](const CudaAxis& axis) {
    return axis.taps == kPixelStripTaps && axis.offset_step == 1 &&
           axis.source_step == t.row.source_step;
  };
  const auto divides = [](auto... extents) { return ((extents % kDepthwiseVector == 0) && ...); };
  return t.multiplier == 1 && slides(t.row) && slides(t.column) && t.row.source_step <= 2 &&
         divides(t.channels, t.source_w, t.source_h, t.target_w, t.target_h,
                 problem.N > 1 ? t.source_n : 0, problem.N > 1 ? t.target_n : 0);
}

// Returns whether w is contiguous, [filter][row][column], with taps in order of increasing offset.
bool has_dense_weights(const DepthwiseTensors& t) {
  const auto in_order = [](const CudaAxis& axis) { return axis.tap0 == 0 && axis.tap_step == 1; };
  return in_order(t.row) && in_order(t.column) && t.weight_k == kPixelStripTaps * kPixelStripTaps &&
         t.weight_r == kPixelStripTaps && t.weight_s == 1;
}

}  // namespace

void fit_pixel_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  const DepthwiseTensors& t = fit.pixel.t;
  if (fit.blocks == 0 || !matches(problem, t)) return;
  const int64_t element = size_of(problem.dtype);
  const int64_t vectors = t.channels / kDepthwiseVector;
  const int stride = t.row.source_step;
  const int at_once = pixel_strip_columns(stride);
  const int64_t columns = ceil_div(t.column.count, at_once);
  const int64_t height = t.row.count;
  const int pixels = (at_once - 1) * stride + kPixelStripTaps;
  const int64_t lead = ceil_div(kPixelStripTaps, stride) - 1;  // steps before the first output
  // Warp instructions per step; see pixel_strip_kernel.cuh.
  const double convert = element == 2 ? kDepthwiseConvertIssue : 0;
  const double step_issue = kPixelStripTaps * kPixelStripTaps * at_once * kDepthwiseVector +
                            stride * (kStripRowIssue + pixels * (kStripLoadIssue + convert)) +
                            at_once * (kStripStepIssue + kDepthwiseVector);
  for (int64_t segments = 1; segments <= height; segments = next_size(segments)) {
    const int64_t rows = ceil_div(height, segments);
    const int64_t used = ceil_div(height, rows);
    const int64_t threads = problem.N * used * columns * vectors;
    if (round_up(threads, kDepthwiseThreads) >= int64_t{1} << 31) return;
    const double steps = static_cast<double>(rows + lead);
    StripWork work{};
    work.blocks = static_cast<double>(ceil_div(threads, kDepthwiseThreads));
    work.resident = kPixelStripBlocks;
    work.warp_issue = kPixelStripSetupIssue + steps * step_issue;
    work.waits = steps / pixel_strip_steps_ahead(element);
    work.moved_bytes = static_cast<double>(threads * element * kDepthwiseVector) *
                       (steps * stride * stride + static_cast<double>(rows)) * at_once;
    work.least_bytes = count_bytes(problem);
    work.load_bytes = static_cast<double>(kDepthwiseVector * element);
    const double us = predict_strips_us(work, caps);
    if (us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.pixel_strip.blocks = ceil_div(threads, kDepthwiseThreads);
    PixelStripParams& p = fit.pixel_strip.params;
    p.t = t;
    p.threads = static_cast<int>(threads), p.segment_rows = static_cast<int>(rows);
    p.by_vectors = FastDivmod(vectors), p.by_columns = FastDivmod(columns);
    p.by_segments = FastDivmod(used);
    p.dense_weights = has_dense_weights(t);
  }
}

}  // namespace convx
