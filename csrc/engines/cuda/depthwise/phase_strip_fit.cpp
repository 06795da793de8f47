#include "engines/cuda/depthwise/phase_strip_fit.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_fit.h"
#include "planning/gather_buffers.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Lattice points i with  kPhaseStride * i + a - pad  inside the target for some a.
struct Lattice {
  int64_t first, end;

  Lattice(int64_t extent, int64_t pad)
      : first(pad / kPhaseStride), end((extent - 1 + pad) / kPhaseStride + 1) {}
  int64_t count() const { return end - first; }
};

bool matches(const ConvProblem& p) {
  return (p.R == 3 || p.R == 5) && p.S == p.R && p.stride == Hw{kPhaseStride, kPhaseStride} &&
         p.dilation == Hw{1, 1} && p.K == p.C;
}

// Sets the number of a thread's channels, and predicts the time of the best segments.
void fit_segments(const ConvProblem& p, const DeviceCaps& caps, int channels, PhaseStripFit& fit) {
  const Lattice rows(p.H, p.pad.top), columns(p.W, p.pad.left);
  const int64_t vectors = p.C / channels;
  const int64_t taps = count_phase_taps(fit.kernel), element = size_of(p.dtype);
  // Warp instructions per step; see phase_strip_kernel.cuh.
  constexpr int64_t kTargets = kPhaseStride * kPhaseStride;
  const double convert = element == 2 ? kDepthwiseConvertIssue * channels / kDepthwiseVector : 0;
  const auto products = static_cast<double>(fit.kernel * fit.kernel * channels);
  const double step_issue =
      products + kStripRowIssue + static_cast<double>(taps) * (kStripLoadIssue + convert) +
      static_cast<double>(taps * (taps - 1) * channels) + kTargets * (kStripStepIssue + channels);
  for (int64_t segments = 1; segments <= rows.count(); segments = next_size(segments)) {
    const int64_t height = ceil_div(rows.count(), segments);
    const int64_t used = ceil_div(rows.count(), height);
    const int64_t threads = p.N * used * columns.count() * vectors;
    if (round_up(threads, kDepthwiseThreads) >= int64_t{1} << 31) return;
    const auto steps = static_cast<double>(height + taps - 1);
    StripWork work{};
    work.blocks = static_cast<double>(ceil_div(threads, kDepthwiseThreads));
    work.resident = kPhaseStripBlocks;
    work.warp_issue = kPhaseStripSetupIssue + products + steps * step_issue;
    work.waits = steps / kPhaseStripAhead;
    work.moved_bytes = static_cast<double>(threads * element * channels) *
                       (steps + static_cast<double>(height * kTargets));
    work.least_bytes = count_bytes(p);
    work.load_bytes = static_cast<double>(channels * element);
    const double us = predict_strips_us(work, caps);
    if (fit.blocks > 0 && us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.channels = channels;
    fit.blocks = ceil_div(threads, kDepthwiseThreads);
    PhaseStripParams& to = fit.params;
    to.threads = static_cast<int>(threads), to.segment_rows = static_cast<int>(height);
    to.by_vectors = FastDivmod(vectors), to.by_columns = FastDivmod(columns.count());
    to.by_segments = FastDivmod(used);
  }
}

}  // namespace

PhaseStripFit fit_phase_strips(const ConvProblem& p, const DeviceCaps& caps) {
  PhaseStripFit fit;
  const DepthwiseLayout layout = find_depthwise_layout(p);
  if (!is_strided_input_grad(p) || !matches(p) || layout == DepthwiseLayout::kOther) return fit;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  PhaseStripParams& to = fit.params;
  const Strides &x = p.x_strides, &y = p.y_strides;
  to.source_n = y.n, to.source_c = y.c, to.source_h = y.h, to.source_w = y.w;
  to.target_n = x.n, to.target_c = x.c, to.target_h = x.h, to.target_w = x.w;
  to.weight_k = p.w_strides.n, to.weight_r = p.w_strides.h, to.weight_s = p.w_strides.w;
  to.source_height = narrow(p.P), to.source_width = narrow(p.Q);
  to.target_height = narrow(p.H), to.target_width = narrow(p.W);
  to.pad_top = narrow(p.pad.top), to.pad_left = narrow(p.pad.left);
  const Lattice rows(p.H, p.pad.top), columns(p.W, p.pad.left);
  to.first_row = narrow(rows.first), to.end_row = narrow(rows.end);
  to.first_column = narrow(columns.first);
  to.channel_is_fastest = layout == DepthwiseLayout::kPixels;
  fit.kernel = narrow(p.R);
  const auto stride = [](int64_t extent, int64_t own) { return extent > 1 ? own : 0; };
  const int unit = fit_unit(size_of(p.dtype), p.C, stride(p.N, x.n), stride(p.N, y.n),
                            stride(p.H, x.h), stride(p.P, y.h), stride(p.W, x.w), stride(p.Q, y.w));
  const int most = count_phase_channels(fit.kernel);
  fit_segments(p, caps, to.channel_is_fastest ? std::min(unit, most) : 1, fit);
  return fit;
}

PhaseStripFit make_phase_strips(const ConvProblem& problem, const PhaseStripFit& fit,
                                const Buffers& buffers) {
  PhaseStripFit made = fit;
  set_gather_buffers(made.params, problem, buffers);
  const bool aligned = is_aligned(buffers.x, problem.dtype, fit.channels) &&
                       is_aligned(buffers.y, problem.dtype, fit.channels);
  if (aligned) return made;
  // One channel per thread, with the same segments.
  PhaseStripParams& p = made.params;
  p.threads *= fit.channels;
  p.by_vectors = FastDivmod(problem.C);
  made.blocks = ceil_div(p.threads, kDepthwiseThreads);
  made.channels = 1;
  return made;
}

}  // namespace convx
