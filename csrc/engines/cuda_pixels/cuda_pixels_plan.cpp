#include "engines/cuda_pixels/cuda_pixels_plan.h"

#include <algorithm>

#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_pixels/pixel_tiling.h"

namespace convx {
namespace {

std::optional<PixelShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                    TensorMath math) {
  const GatherView view = make_gather_view(problem);
  PixelShape shape =
      fit_pixel_shape(problem, caps, make_gather_axis(view.rows[0], false),
                      make_gather_axis(view.columns[0], false), make_pixel_tiling(math));
  if (shape.filters == 0) return {};
  return shape;
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (std::string large = refuse_large_images(p); !large.empty()) return large;
  if (!fit_shape(p, caps, tensor_math(p))) {
    return "no tile fits in shared memory, or its images lie 2^31 elements apart";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaPixels;
  plan_halves<PixelFit>(
      plan, problem, caps,
      [&](const DeviceCaps& some, TensorMath math) { return fit_shape(problem, some, math); },
      [&](PixelShape shape) {
        plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
        plan.split = shape.splits;
        plan.workspace_bytes =
            std::max(plan.workspace_bytes, shape.packed_bytes + shape.partial_bytes);
        return make_pixel_fit(problem, std::move(shape));
      });
  return plan;
}

}  // namespace

Engine cuda_pixels_engine() { return {EngineId::kCudaPixels, "cuda_pixels", refuse, plan}; }

}  // namespace convx
