#include <algorithm>
#include <utility>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/col2im_fit.h"
#include "planning/refusals.h"

namespace convx {
namespace {

// All but whether the filters fit.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass != Pass::kInputGrad) return "it computes input gradients only";
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (p.N == 0) return "the batch is empty";
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  return refuse_many_pixels(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaCol2im;
  const int64_t taps = count_fewest_taps(problem);
  const auto fit_shape = [&](const DeviceCaps& some, TensorMath math, double) {
    return fit_col2im(problem, some, math);
  };
  const auto take = [&](Col2imShape shape, int64_t before) {
    const Col2imGeometry& g = shape.geometry;
    plan.tile = {kStripPixels, int64_t{g.chunk_columns} * g.chunks, g.filters};
    plan.workspace_bytes = std::max(plan.workspace_bytes, before + shape.packed_bytes);
    return make_col2im_fit(problem, std::move(shape));
  };
  std::optional<HalvedPlan<Col2imFit>> fits =
      plan_halves<Col2imFit>(plan, problem, caps, taps, fit_shape, take);
  if (!fits) {
    return Refusal{
        "the filters of a channel do not fit in shared memory, or the kernel reaches too far"};
  }
  Col2imPlan made{problem, std::move(*fits)};
  if (made.fits.half) {  // min_terms is compared with the terms of all taps
    int& terms = made.fits.half->params.min_terms;
    terms = static_cast<int>(terms * problem.R * problem.S / taps);
  }
  plan.geometry = make_geometry(std::move(made));
  return plan;
}

}  // namespace

void Col2imShape::describe(Text& out) const {
  out << "tile " << kStripPixels << " columns of dY x " << geometry.tile_channels
      << " channels, MMAs of " << geometry.columns << " columns in "
      << count_text(geometry.chunks, "chunk");
  describe_stages(out, geometry.stages);
  out << ", " << name_of(math);
}

Engine cuda_col2im_engine() { return {EngineId::kCudaCol2im, "cuda_col2im", consider}; }

}  // namespace convx
