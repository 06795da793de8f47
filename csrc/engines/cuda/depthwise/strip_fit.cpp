#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_fit.h"
#include "engines/cuda/depthwise/strip_match.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

constexpr int64_t kWarp = 32;

// Divides the rows among threads and keeps the best number of segments.
void fit_segments(const ConvProblem& problem, const DeviceCaps& caps, int index, int columns,
                  DepthwiseFit& fit) {
  const DepthwiseTensors& t = fit.plane.t;
  const StripShape& shape = kStripShapes[index];
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, columns);
  const int64_t filters = int64_t{t.channels} * t.multiplier;
  int64_t strips = ceil_div(t.column.count, columns);
  if (shifts_rows(shape, columns)) strips = round_up(strips, kWarp);
  const int64_t height = t.row.count;
  const int64_t lead = ceil_div(shape.row_taps, shape.stride) - 1;  // steps before the first output
  const int64_t padding = std::clamp<int64_t>(ceil_div(-t.row.offset0, shape.stride), 0, lead);
  for (int64_t segments = 1; segments <= height; segments = next_size(segments)) {
    const int64_t rows = ceil_div(height, segments);
    const int64_t used = ceil_div(height, rows);
    const int64_t threads = problem.N * filters * used * strips;
    const int64_t blocks = ceil_div(threads, kDepthwiseThreads);
    // The launch falls back to single columns if addresses are not aligned, so these must fit too.
    const int64_t most_threads =
        problem.N * filters * used * std::max<int64_t>(strips, t.column.count);
    if (round_up(most_threads, kDepthwiseThreads) >= int64_t{1} << 31) return;
    const double steps =
        static_cast<double>(height + lead * used - 2 * padding) / static_cast<double>(used);
    StripWork work{};
    work.blocks = static_cast<double>(blocks);
    work.resident = strip_blocks_per_sm(shape, element, columns);
    work.warp_issue =
        kStripSetupIssue + steps * (count_strip_issue(shape, columns, element) +
                                    (shifts_rows(shape, columns) ? kStripShiftIssue : 0));
    work.waits = steps / strip_steps_ahead(shape, columns);
    work.moved_bytes = static_cast<double>(threads * element) *
                       (steps * shape.stride * reads.span + static_cast<double>(rows * columns));
    work.least_bytes = count_bytes(problem);
    work.load_bytes = static_cast<double>(reads.vector * element);
    const double us = predict_strips_us(work, caps);
    if (us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.strip.shape = index, fit.strip.columns = columns, fit.strip.blocks = blocks;
    StripParams& p = fit.strip.params;
    p.t = t;
    p.threads = static_cast<int>(threads), p.segment_rows = static_cast<int>(rows);
    p.by_strips = FastDivmod(strips), p.by_segments = FastDivmod(used);
    p.by_filters = FastDivmod(filters), p.by_multiplier = FastDivmod(t.multiplier);
  }
}

}  // namespace

void fit_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  if (fit.blocks == 0) return;
  const int64_t element = size_of(problem.dtype);
  for (int index = 0; index < kStripShapeCount; ++index) {
    const StripShape& shape = kStripShapes[index];
    for (const int columns : kStripColumns) {
      if (!has_strip_kernel(shape, element, columns)) continue;
      const int64_t stored = shifts_rows(shape, columns) ? 4 / element : columns;
      if (can_cut_strips(problem, fit.plane.t, shape, columns, stored)) {
        fit_segments(problem, caps, index, columns, fit);
      }
    }
  }
}

StripFit fit_strips_to_addresses(const ConvProblem& problem, const StripFit& fit,
                                 const DepthwiseTensors& t) {
  const StripShape& shape = kStripShapes[fit.shape];
  const int64_t element = size_of(problem.dtype);
  const int stored = shifts_rows(shape, fit.columns) ? static_cast<int>(4 / element) : fit.columns;
  const bool aligned =
      is_aligned(t.source, problem.dtype, StripReads(shape, element, fit.columns).vector) &&
      is_aligned(t.target, problem.dtype, stored);
  if (aligned) return fit;
  StripFit single = fit;
  StripParams& p = single.params;
  const int64_t rows = p.threads / static_cast<int64_t>(p.by_strips.divisor);
  const int64_t threads = rows * p.t.column.count;
  single.columns = 1, single.blocks = ceil_div(threads, kDepthwiseThreads);
  p.threads = static_cast<int>(threads), p.by_strips = FastDivmod(p.t.column.count);
  return single;
}

}  // namespace convx
