// Kernel parameters that all tensor-core engines share: the tensors and the taps of one phase of a
// gather (core/gather_view.h).
#pragma once

#include <cstdint>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/tensor_math.h"

namespace convx {

struct TensorParams {
  const void* source;
  const void* filters;        // the caller's tensor
  const void* packed;         // filters in the layout that the tensor cores read
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be
  void* target;
  float* partials;  // if set, the partial sums of a split-K slice go here
  // If set, the kernel returns at once unless (*run_flag == 0) equals run_if_zero. An earlier
  // kernel writes the flag, so the host never waits.
  const int* run_flag;
  int run_if_zero;
  HalfScales* scales;  // for kHalfTf32 and kHalfIeee
  int min_terms;       // scaled fp16 is unsuitable for sums with fewer non-zero terms

  // Strides in elements. Target strides are between neighbours of the phase's lattice.
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t filter_target, filter_source, filter_r, filter_s, filter_group;
  int64_t partial_stride;  // elements from one split-K slice's sums to the next's

  int images, source_height, source_width, target_height, target_width;
  int groups, group_sources, group_targets;  // channels per group
  int tap_rows, tap_columns;
  int tap_r0, tap_r_step, tap_s0, tap_s_step;  // kernel index of tap (i, j)
  int offset_h0, offset_h_step, offset_w0, offset_w_step;
  int source_step_h, source_step_w;
  int plane_contiguous;  // not 0: a target plane has no gaps between its rows
};

// Everything but the pointers, which are null.
inline TensorParams make_tensor_params(const ConvProblem& problem, const GatherAxis& rows,
                                       const GatherAxis& columns) {
  const GatherTensors view = make_gather_tensors(problem);
  const Strides& source = view.source_strides;
  const Strides& target = view.target_strides;
  TensorParams p{};
  p.source_n = source.n, p.source_c = source.c, p.source_h = source.h, p.source_w = source.w;
  p.target_n = target.n, p.target_c = target.c;
  p.target_h = target.h * rows.target_step, p.target_w = target.w * columns.target_step;
  p.filter_target = view.weight_target_stride;
  p.filter_source = view.weight_source_stride;
  p.filter_r = problem.w_strides.h, p.filter_s = problem.w_strides.w;
  p.filter_group = problem.filters_per_group() * problem.w_strides.n;

  p.images = narrow(problem.N);
  p.source_height = narrow(view.source_h), p.source_width = narrow(view.source_w);
  p.target_height = narrow(rows.count), p.target_width = narrow(columns.count);
  p.groups = narrow(problem.groups);
  p.group_sources = narrow(view.source_channels);
  p.group_targets = narrow(view.target_channels);
  p.tap_rows = narrow(rows.taps), p.tap_columns = narrow(columns.taps);
  p.tap_r0 = narrow(rows.tap0), p.tap_r_step = narrow(rows.tap_step);
  p.tap_s0 = narrow(columns.tap0), p.tap_s_step = narrow(columns.tap_step);
  p.offset_h0 = narrow(rows.offset0), p.offset_h_step = narrow(rows.offset_step);
  p.offset_w0 = narrow(columns.offset0), p.offset_w_step = narrow(columns.offset_step);
  p.source_step_h = narrow(rows.source_step), p.source_step_w = narrow(columns.source_step);
  p.partial_stride = problem.N * problem.groups * view.target_channels * rows.count * columns.count;
  p.plane_contiguous = p.target_w == 1 && p.target_h == columns.count;
  return p;
}

// Sets the pointers of a call. The workspace holds the packed filters and, if the reduction is
// split, the partial sums behind them.
inline void set_tensors(TensorParams& p, const ConvProblem& problem, const GatherAxis& rows,
                        const GatherAxis& columns, const Buffers& buffers, int64_t packed_bytes,
                        bool split) {
  const bool forward = problem.pass == Pass::kForward;
  const Strides& to = forward ? problem.y_strides : problem.x_strides;
  p.source = forward ? buffers.x : buffers.y;
  p.filters = buffers.w;
  p.packed = buffers.workspace;
  p.bias = forward && problem.epilogue.has_bias ? buffers.bias : nullptr;
  p.lowest = find_lowest(problem);
  p.target = static_cast<char*>(forward ? buffers.y : buffers.x) +
             size_of(problem.dtype) * (rows.target_start * to.h + columns.target_start * to.w);
  if (split) {
    p.partials = reinterpret_cast<float*>(static_cast<char*>(buffers.workspace) + packed_bytes);
    p.lowest = kUnbounded;  // sum_partials bounds the sums
  }
}

}  // namespace convx
