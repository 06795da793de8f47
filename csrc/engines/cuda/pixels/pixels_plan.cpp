#include <algorithm>
#include <optional>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::optional<PixelShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                    TensorMath math, const GatherPhase& phase, double) {
  PixelShape shape =
      fit_pixel_shape(problem, caps, phase.rows, phase.columns, make_wgmma_tiling(math));
  if (shape.filters == 0) return {};
  return shape;
}

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma_gather(p, caps); !refusal.empty()) return refusal;
  if (std::string unreached = refuse_unreached_pixels(p); !unreached.empty()) return unreached;
  return refuse_large_images(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps,
                       const SearchLimits& limits) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaPixels;
  const auto take = [&](PixelShape shape, int64_t before) {
    plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes =
        std::max(plan.workspace_bytes, before + shape.packed_bytes + shape.partial_bytes);
    return make_pixel_fit(problem, std::move(shape));
  };
  std::optional<PhasedPlan<PixelFit>> phases = plan_phases<PixelFit>(
      plan, problem, caps, make_gather_phases(problem), fit_shape, take, limits.give_up_us);
  if (!phases) {
    return Refusal{"no tile fits in shared memory, or its images lie 2^31 elements apart"};
  }
  plan.geometry = make_geometry(PixelsPlan{std::move(*phases)});
  return plan;
}

}  // namespace

void PixelShape::describe(Text& out) const {
  out << "tile " << 2 * window_pixels() << " pixels x " << filters << " filters";
  describe_stages(out, source_stages, resident ? 0 : filter_stages);
  if (resident) out << ", resident filters";
  describe_split(out, splits);
  out << (bands ? ", bands of " : ", segments of ") << count_text(staged_rows, "row");
  if (folded) out << (paired ? ", taps folded in pairs" : ", taps folded");
  out << ", " << name_of(math);
}

Engine cuda_pixels_engine() { return {EngineId::kCudaPixels, "cuda_pixels", consider}; }

}  // namespace convx
