// A depthwise weight gradient that is fitted and ready to launch but for its buffers. Plain host
// code.
#pragma once

#include <cstdint>
#include <variant>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

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

// Over pixels whose channels are neighbours.
struct PixelWeightGradFit {
  int kernel_taps = 0;  // of kPixelGradTaps
  int threads = 0;
  PixelWeightGradParams params{};
  int64_t blocks = 0, parts = 0;  // as above
  int64_t shared_bytes = 0, workspace_bytes = 0;
  double microseconds = 0;
};

StripWeightGradFit fit_strip_weight_grad(const ConvProblem& problem, const DeviceCaps& caps);
PixelWeightGradFit fit_pixel_weight_grad(const ConvProblem& problem, const DeviceCaps& caps);

// Plan::shape of a weight gradient.
using DepthwiseWeightGradFit = std::variant<StripWeightGradFit, PixelWeightGradFit>;
// Whichever serves the problem's layout; without blocks where neither does.
DepthwiseWeightGradFit fit_depthwise_weight_grad(const ConvProblem& problem,
                                                 const DeviceCaps& caps);

// The fits with their buffers.
StripWeightGradFit make_strip_weight_grad(const ConvProblem& problem, const StripWeightGradFit& fit,
                                          const Buffers& buffers);
PixelWeightGradParams make_pixel_weight_grad_params(const ConvProblem& problem,
                                                    const PixelWeightGradFit& fit,
                                                    const Buffers& buffers);

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
WeightGradSums make_weight_grad_sums(const ConvProblem& problem, int64_t parts,
                                     const Buffers& buffers);

}  // namespace convx
