#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda_depthwise/cuda_depthwise_costs.h"
#include "engines/cuda_depthwise/depthwise_fit.h"
#include "engines/cuda_depthwise/depthwise_weight_grad_fit.h"
#include "engines/cuda_depthwise/strip_match.h"
#include "engines/cuda_staging.h"

namespace convx {
namespace {

constexpr int64_t kWarps = kDepthwiseThreads / 32;
constexpr int64_t kMostRounds = 64;

// Shares the rows out among threads, and the strips among blocks; keeps the best.
void fit_parts(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
               int index, int columns, StripWeightGradFit& fit) {
  const StripShape& shape = kStripShapes[index];
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, columns);
  const int64_t taps = problem.taps();
  const int64_t weights = problem.K * taps;
  const int64_t strips = t.column.count / columns;
  const int64_t lead = ceil_div(shape.row_taps, shape.stride) - 1;  // steps behind the last row
  for (int64_t segments = 1; segments <= t.row.count; segments = next_size(segments)) {
    const int64_t rows = ceil_div(t.row.count, segments);
    const int64_t used = ceil_div(t.row.count, rows);
    const int64_t items = problem.N * used * strips;
    if (items >= int64_t{1} << 30) return;
    for (int64_t rounds = 1; rounds <= kMostRounds; rounds *= 2) {  // strips of a thread
      const int64_t parts = ceil_div(items, rounds * kDepthwiseThreads);
      const int64_t blocks = parts * problem.K;
      const int64_t workspace = parts * weights * 4;
      if (blocks >= int64_t{1} << 31 || workspace > caps.workspace_limit) continue;
      const double steps = static_cast<double>(rows + lead);
      const double passes = static_cast<double>(rounds);
      StripWork work{};
      work.blocks = static_cast<double>(blocks);
      work.resident = weight_grad_blocks_per_sm(shape, element, columns);
      work.warp_issue =
          kStripSetupIssue + static_cast<double>(taps) * kStripSumIssue +
          passes * (kStripSetupIssue + steps * (count_strip_issue(shape, columns, element) +
                                                kStripLoadIssue + 2 * columns));
      work.waits = passes * steps / strip_steps_ahead(shape, columns);
      work.moved_bytes = static_cast<double>(problem.K * items * element) *
                         (steps * shape.stride * reads.span + static_cast<double>(rows * columns));
      work.least_bytes = count_bytes(problem) + 2.0 * static_cast<double>(workspace);
      work.load_bytes = static_cast<double>(std::min(reads.vector, columns) * element);
      const double us = predict_strips_us(work, caps) + kStripSecondPassUs;
      if (fit.blocks > 0 && us >= fit.microseconds) continue;
      fit.microseconds = us;
      fit.shape = index, fit.columns = columns;
      fit.blocks = blocks, fit.parts = parts;
      fit.shared_bytes = kWarps * taps * 4, fit.workspace_bytes = workspace;
      StripWeightGradParams& p = fit.params;
      p.t = t;
      p.partial_stride = weights;
      p.items = static_cast<int>(items);
      p.items_per_part = static_cast<int>(rounds * kDepthwiseThreads);
      p.segment_rows = static_cast<int>(rows);
      p.by_strips = FastDivmod(strips), p.by_segments = FastDivmod(used);
      p.by_filters = FastDivmod(problem.K), p.by_multiplier = FastDivmod(t.multiplier);
    }
  }
}

}  // namespace

StripWeightGradFit fit_strip_weight_grad(const ConvProblem& problem, const DeviceCaps& caps) {
  StripWeightGradFit fit;
  ConvProblem forward = problem;
  forward.pass = Pass::kForward;
  if (find_depthwise_layout(forward) != DepthwiseLayout::kPlanes) return fit;
  if (problem.K * problem.taps() >= int64_t{1} << 31) return fit;
  const DepthwiseTensors t = make_plane_tensors(forward);
  for (int index = 0; index < kStripShapeCount; ++index) {
    const StripShape& shape = kStripShapes[index];
    for (const int columns : kStripColumns) {
      if (!has_weight_grad_kernel(shape, columns)) continue;
      if (can_cut_strips(problem, t, shape, columns, columns)) {
        fit_parts(problem, caps, t, index, columns, fit);
      }
    }
  }
  return fit;
}

StripWeightGradFit make_strip_weight_grad(const ConvProblem& problem, const StripWeightGradFit& fit,
                                          const Buffers& buffers) {
  StripWeightGradFit made = fit;
  made.params.t.source = buffers.x, made.params.t.target = buffers.y;
  made.params.partials = static_cast<float*>(buffers.workspace);
  const StripReads reads(kStripShapes[fit.shape], size_of(problem.dtype), fit.columns);
  made.aligned = is_aligned(buffers.x, problem.dtype, reads.vector) &&
                 is_aligned(buffers.y, problem.dtype, fit.columns);
  return made;
}

}  // namespace convx
