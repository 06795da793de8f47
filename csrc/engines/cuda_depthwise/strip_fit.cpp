#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda_depthwise/cuda_depthwise_costs.h"
#include "engines/cuda_depthwise/depthwise_fit.h"
#include "engines/cuda_depthwise/depthwise_units.h"
#include "engines/cuda_depthwise/strip_shapes.h"

namespace convx {
namespace {

constexpr int64_t kWarp = 32;

bool matches(const StripShape& shape, const DepthwiseTensors& t) {
  const DepthwiseAxis& row = t.row;
  const DepthwiseAxis& column = t.column;
  return row.taps == shape.row_taps && column.taps == shape.column_taps && row.offset_step == 1 &&
         column.offset_step == 1 && row.source_step == shape.stride &&
         column.source_step == shape.stride && column.offset0 == -shape.left;
}

// Whether all these extents and strides can be cut by size.
template <typename... Extents>
bool divides(int64_t size, Extents... extents) {
  return ((extents % size == 0) && ...);
}

bool can_read(const ConvProblem& problem, const DepthwiseTensors& t, int64_t vector) {
  return divides(vector, int64_t{t.source_width}, problem.N > 1 ? t.source_n : 0,
                 problem.C > 1 ? t.source_c : 0, t.source_height > 1 ? t.source_h : 0);
}

// Rows of results follow each other (find_depthwise_layout).
bool can_store(const ConvProblem& problem, const DepthwiseTensors& t, int64_t stored) {
  return divides(stored, int64_t{t.column.count}, problem.N > 1 ? t.target_n : 0,
                 t.channels * t.multiplier > 1 ? t.target_c : 0);
}

double predict_strips_us(const ConvProblem& problem, const DeviceCaps& caps,
                         const StripShape& shape, int columns, int64_t blocks, double steps,
                         int64_t rows) {
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, columns);
  const double taps = shape.row_taps * shape.column_taps;
  const double convert = element == 2 ? reads.elements() : 0;
  const double step = taps * columns + kStripStepIssue + columns +
                      shape.stride * (convert + kStripLoadIssue * reads.loads() + kStripRowIssue) +
                      (shape.shifted ? kStripShiftIssue : 0);
  const double sms = std::max(caps.sm_count, 1);
  const double warps_per_block = static_cast<double>(kDepthwiseThreads) / kWarp;
  const double resident = strip_blocks_per_sm(shape, element, columns);
  const double per_sm = std::max(1.0, static_cast<double>(blocks) / sms);
  const double rate = std::min(kDepthwiseIssuePerCycle,
                               kDepthwiseWarpIssue * std::min(resident, per_sm) * warps_per_block);
  const double compute =
      per_sm * warps_per_block * (steps * step + kStripSetupIssue) / rate / kDepthwiseCyclesPerUs;
  const double threads = static_cast<double>(blocks) * kDepthwiseThreads;
  const double moved = threads * static_cast<double>(element) *
                       (steps * shape.stride * reads.span + static_cast<double>(rows) * columns);
  const double least = count_bytes(problem);
  const double narrow = 16.0 / static_cast<double>(reads.vector * element) - 1;
  const double memory = (least / kStripBytesPerUs * (1 + kStripNarrowLoad * narrow) +
                         std::max(0.0, moved - least) / kDepthwiseExcessBytesPerUs) *
                        kDepthwiseReferenceSms / sms;
  const double latency =
      std::max(1.0, per_sm / resident) * steps / strip_steps_ahead(shape) * kStripLatencyUs;
  const double wave = std::min(1.0, resident / per_sm);
  return kDepthwiseLaunchUs + std::max({compute * (1 + kStripTail * wave),
                                        memory * (1 + kStripMemoryTail * wave), latency});
}

// Shares the rows out among threads; keeps the best number of segments.
void fit_segments(const ConvProblem& problem, const DeviceCaps& caps, int index, int columns,
                  DepthwiseFit& fit) {
  const DepthwiseTensors& t = fit.plane.t;
  const StripShape& shape = kStripShapes[index];
  const int64_t filters = int64_t{t.channels} * t.multiplier;
  int64_t strips = ceil_div(t.column.count, columns);
  if (shape.shifted) strips = round_up(strips, kWarp);
  const int64_t height = t.row.count;
  const int64_t lead = ceil_div(shape.row_taps, shape.stride) - 1;  // steps before the first result
  const int64_t padding = std::clamp<int64_t>(ceil_div(-t.row.offset0, shape.stride), 0, lead);
  for (int64_t segments = 1; segments <= height; segments = next_size(segments)) {
    const int64_t rows = ceil_div(height, segments);
    const int64_t used = ceil_div(height, rows);
    const int64_t threads = problem.N * filters * used * strips;
    const int64_t blocks = ceil_div(threads, kDepthwiseThreads);
    if (blocks * kDepthwiseThreads >= int64_t{1} << 31) return;
    const double steps =
        static_cast<double>(height + lead * used - 2 * padding) / static_cast<double>(used);
    const double us = predict_strips_us(problem, caps, shape, columns, blocks, steps, rows);
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
  if (fit.blocks == 0) return;  // planes serve tensors that are not aligned
  const int64_t element = size_of(problem.dtype);
  for (int index = 0; index < kStripShapeCount; ++index) {
    const StripShape& shape = kStripShapes[index];
    if (!matches(shape, fit.plane.t)) continue;
    for (const int columns : kStripColumns) {
      if (!has_strip_kernel(shape, element, columns)) continue;
      const int64_t stored = shape.shifted ? 4 / element : columns;
      if (!can_read(problem, fit.plane.t, StripReads(shape, element, columns).vector)) continue;
      if (!can_store(problem, fit.plane.t, stored)) continue;
      fit_segments(problem, caps, index, columns, fit);
    }
  }
}

}  // namespace convx
