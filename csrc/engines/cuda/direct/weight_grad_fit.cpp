#include "engines/cuda/direct/weight_grad_fit.h"

#include "planning/dense_pixels.h"

namespace convx {
namespace {

ElementStrides copy_strides(const Strides& from) { return {from.n, from.c, from.h, from.w}; }

}  // namespace

WeightGradFit make_weight_grad_fit(const ConvProblem& described, const WeightGradShape& shape) {
  const ConvProblem problem = shape.is_transposed ? *transpose_weight_grad(described) : described;
  WeightGradFit fit{shape, {}};
  WeightGradParams& p = fit.params;
  p.x_strides = copy_strides(problem.x_strides);
  p.y_strides = copy_strides(problem.y_strides);
  p.w_strides = copy_strides(problem.w_strides);
  p.pixels = problem.N * problem.P * problem.Q;
  p.pixels_per_split = shape.pixels_per_split;
  p.H = static_cast<int>(problem.H);
  p.W = static_cast<int>(problem.W);
  p.P = static_cast<int>(problem.P);
  p.Q = static_cast<int>(problem.Q);
  p.R = static_cast<int>(problem.R);
  p.S = static_cast<int>(problem.S);
  p.channels = static_cast<int>(problem.channels_per_group());
  p.filters = static_cast<int>(problem.filters_per_group());
  p.stride_h = static_cast<int>(problem.stride.h);
  p.stride_w = static_cast<int>(problem.stride.w);
  p.dilation_h = static_cast<int>(problem.dilation.h);
  p.dilation_w = static_cast<int>(problem.dilation.w);
  p.pad_top = static_cast<int>(problem.pad.top);
  p.pad_left = static_cast<int>(problem.pad.left);
  p.filter_tiles = static_cast<int>(shape.filter_tiles);
  p.column_tiles = static_cast<int>(shape.column_tiles);
  p.splits = static_cast<int>(shape.split);
  p.direct = shape.direct;
  p.by_P = FastDivmod(problem.P);
  p.by_Q = FastDivmod(problem.Q);
  if (has_dense_pixels(problem)) {
    p.x_pitch = find_x_pitch(problem), p.y_pitch = find_y_pitch(problem);
  }
  return fit;
}

}  // namespace convx
