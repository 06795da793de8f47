// A fitted depthwise weight gradient, ready to launch except for its buffers. Plain host code.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "core/arithmetic.h"
#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_params.h"
#include "planning/staged_rows.h"

namespace convx {

// Launch size and predicted time of either kernel.
struct WeightGradCost {
  int64_t blocks = 0;  // 0: no kernel serves the problem
  int64_t parts = 0;   // partial sums per weight
  int64_t shared_bytes = 0, workspace_bytes = 0;
  double microseconds = 0;
};

struct StripWeightGradFit : WeightGradCost {
  int shape = -1;  // index in kStripShapes (strip_shapes.h)
  int columns = 0;
  bool aligned = true;  // both tensors are aligned to a thread's loads; known only at launch
  StripWeightGradParams params{};
};

// The channels_last kernel that keeps rows of taps in registers.
struct RowWeightGradFit : WeightGradCost {
  int core = -1;  // index in kRowGradCores
  int threads = 0;
  RowWeightGradParams params{};

  // Partial sums per weight; 0: the kernel writes dW.
  int64_t count_partials() const { return parts == 1 ? 0 : parts; }
};

// The tiled kernel, for channels_last and for kernel sizes without strips.
struct PixelWeightGradFit : WeightGradCost {
  int core = -1;  // index in kPixelGradCores
  int threads = 0;
  PixelWeightGradParams params{};
  // Filled if it is predicted to be faster; it takes precedence if the buffers are aligned for it.
  // The workspace is then large enough for either kernel.
  RowWeightGradFit rows;
};

// `forward` is the problem with its pass set to forward.
StripWeightGradFit fit_strip_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);
PixelWeightGradFit fit_pixel_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);
// The result has no blocks if no kernel serves the problem.
RowWeightGradFit fit_row_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);

// A distribution of rows among threads and of strips among blocks.
struct StripShare {
  int64_t rows, segments;  // rows per segment; segments per strip
  int64_t items;           // segments of all strips and images
  int64_t rounds;          // items that a thread processes in turn
  int64_t per_part, parts;
};

// Calls visit(share) for every distribution worth trying. `strips` is the number of strips of an
// image, `lanes` the number of items that a block processes at once.
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

// If the share's predicted time is shorter than the best so far, stores its cost in `best` and
// returns true. part_blocks is the number of blocks for one part.
bool take_if_sooner(const ConvProblem& problem, const DeviceCaps& caps, const StripShare& share,
                    int64_t part_blocks, StripWork work, WeightGradCost& best);

// Stored in Plan::shape for weight gradients.
using DepthwiseWeightGradFit = std::variant<StripWeightGradFit, PixelWeightGradFit>;
// Returns the kernel that serves the problem's layout. The result has no blocks if none does.
DepthwiseWeightGradFit fit_depthwise_weight_grad(const ConvProblem& problem,
                                                 const DeviceCaps& caps);

// Complete the fits with the buffers of one call.
StripWeightGradFit make_strip_weight_grad(const ConvProblem& problem, const StripWeightGradFit& fit,
                                          const Buffers& buffers);
PixelWeightGradParams make_pixel_weight_grad_params(const ConvProblem& problem,
                                                    const PixelWeightGradFit& fit,
                                                    const Buffers& buffers);
// Returns nothing if the fit has no such kernel or the buffers are not aligned for it.
std::optional<RowWeightGradParams> make_row_weight_grad_params(const ConvProblem& problem,
                                                               const RowWeightGradFit& fit,
                                                               const Buffers& buffers);

// The second kernel, which adds the partial sums in the workspace (weight_grad_sums_kernel.cuh).
constexpr int kWeightGradSumsThreads = 256;
constexpr int kWeightGradSumsWeights = 32;                        // per block
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
