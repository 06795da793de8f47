#include "engines/cuda_depthwise/depthwise_weight_grad_fit.h"

#include "engines/cuda_depthwise/depthwise_fit.h"

namespace convx {

DepthwiseWeightGradFit fit_depthwise_weight_grad(const ConvProblem& problem,
                                                 const DeviceCaps& caps) {
  ConvProblem forward = problem;
  forward.pass = Pass::kForward;
  if (find_depthwise_layout(forward) == DepthwiseLayout::kPixels) {
    return fit_pixel_weight_grad(problem, caps);
  }
  return fit_strip_weight_grad(problem, caps);
}

WeightGradSums make_weight_grad_sums(const ConvProblem& problem, int64_t parts,
                                     const Buffers& buffers) {
  WeightGradSums sums{};
  sums.partials = static_cast<const float*>(buffers.workspace);
  sums.partial_stride = problem.K * problem.taps();
  sums.splits = static_cast<int>(parts);
  sums.images = 1;
  sums.target_height = static_cast<int>(problem.R);
  sums.target_width = static_cast<int>(problem.S);
  sums.target_c = problem.w_strides.n;
  sums.target_h = problem.w_strides.h, sums.target_w = problem.w_strides.w;
  sums.target = buffers.w;
  return sums;
}

}  // namespace convx
