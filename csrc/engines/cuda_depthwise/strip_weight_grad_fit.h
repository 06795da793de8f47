// A depthwise weight gradient that is fitted and ready to launch but for its buffers. Plain host
// code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// Plan::shape of a weight gradient.
struct StripWeightGradFit {
  int shape = -1;  // in kStripShapes (strip_shapes.h)
  int columns = 0;
  bool aligned = true;  // the tensors, to what a thread loads; known at the launch
  StripWeightGradParams params{};
  int64_t blocks = 0;  // 0: no kernel serves the problem
  int64_t parts = 0;   // partial sums of a weight
  int64_t shared_bytes = 0, workspace_bytes = 0;
  double microseconds = 0;
};

StripWeightGradFit fit_strip_weight_grad(const ConvProblem& problem, const DeviceCaps& caps);

// How the partial sums in the workspace become the gradient; as sum_partials.cuh wants it.
struct WeightGradSums {
  const float* partials;
  int64_t partial_stride;  // weights
  int splits;
  int images, target_height, target_width;
  int64_t target_n, target_c, target_h, target_w;
  void* target;
  const void* bias;
};

// The fit with its buffers, and the second pass.
struct StripWeightGradLaunch {
  StripWeightGradFit fit;
  WeightGradSums sums;
};
StripWeightGradLaunch make_weight_grad_launch(const ConvProblem& problem,
                                              const StripWeightGradFit& fit,
                                              const Buffers& buffers);

}  // namespace convx
