// A depthwise weight gradient that is fitted and ready to launch but for its buffers. Plain host
// code.
#pragma once

#include <cstdint>
#include <variant>

#include "core/arithmetic.h"
#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_depthwise/cuda_depthwise_costs.h"
#include "engines/cuda_depthwise/depthwise_params.h"
#include "engines/cuda_staging.h"

namespace convx {

// Of either kind.
struct WeightGradCost {
  int64_t blocks = 0;  // 0: no kernel serves the problem
  int64_t parts = 0;   // partial sums of a weight
  int64_t shared_bytes = 0, workspace_bytes = 0;
  double microseconds = 0;
};

struct StripWeightGradFit : WeightGradCost {
  int shape = -1;  // in kStripShapes (strip_shapes.h)
  int columns = 0;
  bool aligned = true;  // the tensors, to what a thread loads; known at the launch
  StripWeightGradParams params{};
};

// Over pixels whose channels are neighbours.
struct PixelWeightGradFit : WeightGradCost {
  int core = -1;  // in kPixelGradCores
  int threads = 0;
  PixelWeightGradParams params{};
};

// Of a problem as its forward pass is, in planes or in pixels.
StripWeightGradFit fit_strip_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);
PixelWeightGradFit fit_pixel_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);

// How rows are shared out among threads, and strips among blocks.
struct StripShare {
  int64_t rows, segments;  // rows of a segment, segments of a strip
  int64_t items;           // segments of all strips and images
  int64_t rounds;          // items of a thread, one after the other
  int64_t per_part, parts;
};

// Calls visit with every share worth trying. strips: of an image; lanes: items of a block at a
// time.
template <typename Visit>
void visit_strip_shares(const ConvProblem& problem, int64_t height, int64_t strips, int64_t lanes,
                        const Visit& visit) {
  constexpr int64_t kMostRounds = 64;
  for (int64_t wanted = 1; wanted <= height; wanted = next_size(wanted)) {
    StripShare share{};
    share.rows = ceil_div(height, wanted);
    share.segments = ceil_div(height, share.rows);
    share.items = problem.N * share.segments * strips;
    if (share.items >= int64_t{1} << 30) return;
    for (share.rounds = 1; share.rounds <= kMostRounds; share.rounds *= 2) {
      share.per_part = share.rounds * lanes;
      share.parts = ceil_div(share.items, share.per_part);
      visit(share);
    }
  }
}

// Where a share's work is done sooner than the best so far, takes its cost and returns true.
// part_blocks: of a part.
bool take_if_sooner(const ConvProblem& problem, const DeviceCaps& caps, const StripShare& share,
                    int64_t part_blocks, StripWork work, WeightGradCost& best);

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

// How the partial sums in the workspace become the gradient (weight_grad_sums_kernel.cuh).
constexpr int kWeightGradSumsThreads = 256;
constexpr int kWeightGradSumsWeights = 32;                        // of a block
constexpr int kWeightGradSumsBytes = kWeightGradSumsThreads * 4;  // of shared memory
struct WeightGradSums {
  const float* partials;  // [part][weight]
  void* target;
  int64_t weights;  // filters * rows * columns
  int64_t target_k, target_r, target_s;
  int parts, rows, columns;

  int64_t count_blocks() const { return ceil_div(weights, kWeightGradSumsWeights); }
};
WeightGradSums make_weight_grad_sums(const ConvProblem& problem, int64_t parts,
                                     const Buffers& buffers);

}  // namespace convx
