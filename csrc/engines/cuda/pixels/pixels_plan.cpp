#include <algorithm>
#include <optional>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::optional<PixelShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                    TensorMath math, const GatherPhase& phase) {
  PixelShape shape =
      fit_pixel_shape(problem, caps, phase.rows, phase.columns, make_wgmma_tiling(math));
  if (shape.filters == 0) return {};
  return shape;
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma_gather(p, caps); !refusal.empty()) return refusal;
  if (std::string unreached = refuse_unreached_pixels(p); !unreached.empty()) return unreached;
  if (std::string large = refuse_large_images(p); !large.empty()) return large;
  for (const GatherPhase& phase : make_gather_phases(p)) {
    if (!fit_shape(p, caps, tensor_math(p), phase)) {
      return "no tile fits in shared memory, or its images lie 2^31 elements apart";
    }
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaPixels;
  const auto take = [&](PixelShape shape, int64_t before) {
    plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes =
        std::max(plan.workspace_bytes, before + shape.packed_bytes + shape.partial_bytes);
    return make_pixel_fit(problem, std::move(shape));
  };
  plan.shape = std::make_shared<PixelsPlan>(
      plan_phases<PixelFit>(plan, problem, caps, make_gather_phases(problem), fit_shape, take));
  return plan;
}

}  // namespace

Engine cuda_pixels_engine() { return {EngineId::kCudaPixels, "cuda_pixels", refuse, plan}; }

}  // namespace convx
