#include <algorithm>

#include "engines/cuda/depthwise/depthwise_fit.h"
#include "engines/cuda/depthwise/depthwise_weight_grad_fit.h"
#include "engines/cuda/depthwise/strip_match.h"

namespace convx {
namespace {

constexpr int64_t kWarps = kDepthwiseThreads / 32;

// Divides the rows among threads and the strips among blocks, and keeps the best.
void fit_parts(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
               int index, int columns, StripWeightGradFit& fit) {
  const StripShape& shape = kStripShapes[index];
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, columns);
  const int64_t taps = problem.taps();
  const int64_t strips = t.column.count / columns;
  const int64_t lead = ceil_div(shape.row_taps, shape.stride) - 1;  // steps after the last row
  visit_strip_shares(problem, t.row.count, strips, kDepthwiseThreads, [&](const StripShare& share) {
    const double steps = static_cast<double>(share.rows + lead);
    const double passes = static_cast<double>(share.rounds);
    StripWork work{};
    work.resident = weight_grad_blocks_per_sm(shape, element, columns);
    work.warp_issue =
        kStripSetupIssue + static_cast<double>(taps) * kStripSumIssue +
        passes * (kStripSetupIssue + steps * (count_strip_issue(shape, columns, element) +
                                              kStripLoadIssue + 2 * columns));
    work.waits = passes * steps / strip_steps_ahead(shape, columns);
    work.moved_bytes =
        static_cast<double>(problem.K * share.items * element) *
        (steps * shape.stride * reads.span + static_cast<double>(share.rows * columns));
    work.load_bytes = static_cast<double>(std::min(reads.vector, columns) * element);
    if (!take_if_sooner(problem, caps, share, problem.K, work, fit)) return;
    fit.shape = index, fit.columns = columns;
    fit.shared_bytes = kWarps * taps * 4;
    StripWeightGradParams& p = fit.params;
    p.t = t;
    p.partial_stride = problem.K * taps;
    p.items = static_cast<int>(share.items);
    p.items_per_part = static_cast<int>(share.per_part);
    p.segment_rows = static_cast<int>(share.rows);
    p.by_strips = FastDivmod(strips), p.by_segments = FastDivmod(share.segments);
    p.by_filters = FastDivmod(problem.K), p.by_multiplier = FastDivmod(t.multiplier);
  });
}

}  // namespace

StripWeightGradFit fit_strip_weight_grad(const ConvProblem& forward, const DeviceCaps& caps) {
  StripWeightGradFit fit;
  const DepthwiseTensors t = make_plane_tensors(forward);
  for (int index = 0; index < kStripShapeCount; ++index) {
    const StripShape& shape = kStripShapes[index];
    for (const int columns : kStripColumns) {
      if (!has_weight_grad_kernel(shape, columns)) continue;
      if (can_cut_strips(forward, t, shape, columns, columns)) {
        fit_parts(forward, caps, t, index, columns, fit);
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
