#include "engines/cuda/depthwise/depthwise_weight_grad_fit.h"

#include <algorithm>

#include "engines/cuda/depthwise/depthwise_fit.h"

namespace convx {

DepthwiseWeightGradFit fit_depthwise_weight_grad(const ConvProblem& problem,
                                                 const DeviceCaps& caps) {
  if (problem.K * problem.taps() >= int64_t{1} << 31) return {};
  ConvProblem forward = problem;
  forward.pass = Pass::kForward;
  switch (find_depthwise_layout(forward)) {
    case DepthwiseLayout::kPlanes: {
      // Strips use neither shared memory nor element-wise copies. Tiles serve all other sizes.
      const StripWeightGradFit strips = fit_strip_weight_grad(forward, caps);
      if (strips.blocks > 0) return strips;
      return fit_pixel_weight_grad(forward, caps);
    }
    case DepthwiseLayout::kPixels: {
      PixelWeightGradFit tiles = fit_pixel_weight_grad(forward, caps);
      const RowWeightGradFit rows = fit_row_weight_grad(forward, caps);
      if (tiles.blocks > 0 && rows.blocks > 0 && rows.microseconds < tiles.microseconds) {
        tiles.rows = rows;
        tiles.microseconds = rows.microseconds;
        tiles.workspace_bytes = std::max(tiles.workspace_bytes, rows.workspace_bytes);
      }
      return tiles;
    }
    case DepthwiseLayout::kOther:
      break;
  }
  return {};
}

bool take_if_sooner(const ConvProblem& problem, const DeviceCaps& caps, const StripShare& share,
                    int64_t part_blocks, StripWork work, WeightGradCost& best) {
  const int64_t blocks = share.parts * part_blocks;
  const int64_t workspace = share.parts * problem.K * problem.taps() * 4;
  if (blocks >= int64_t{1} << 31 || workspace > caps.workspace_limit) return false;
  work.blocks = static_cast<double>(blocks);
  work.least_bytes = count_bytes(problem) + 2.0 * static_cast<double>(workspace);
  const double us = predict_strips_us(work, caps) + kStripSecondPassUs;
  if (best.blocks > 0 && us >= best.microseconds) return false;
  best.microseconds = us;
  best.blocks = blocks, best.parts = share.parts, best.workspace_bytes = workspace;
  return true;
}

WeightGradSums make_weight_grad_sums(const ConvProblem& problem, int64_t parts,
                                     const Buffers& buffers) {
  WeightGradSums sums{};
  sums.partials = static_cast<const float*>(buffers.workspace);
  sums.target = buffers.w;
  sums.weights = problem.K * problem.taps();
  sums.target_k = problem.w_strides.n;
  sums.target_r = problem.w_strides.h, sums.target_s = problem.w_strides.w;
  sums.parts = static_cast<int>(parts);
  sums.rows = static_cast<int>(problem.R), sums.columns = static_cast<int>(problem.S);
  return sums;
}

}  // namespace convx
