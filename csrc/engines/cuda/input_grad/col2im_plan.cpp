#include <algorithm>
#include <utility>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/col2im_fit.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass != Pass::kInputGrad) return "it computes input gradients only";
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (p.N == 0) return "the batch is empty";
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  // Without the scales of scaled fp16: the plan leaves it out if they do not fit.
  if (!fit_col2im(p, caps, tensor_math(p))) {
    return "the filters of a channel do not fit in shared memory, or the kernel reaches too far";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaCol2im;
  const int64_t taps = count_fewest_taps(problem);
  const auto fit_shape = [&](const DeviceCaps& some, TensorMath math) {
    return fit_col2im(problem, some, math);
  };
  const auto take = [&](Col2imShape shape, int64_t before) {
    const Col2imGeometry& g = shape.geometry;
    plan.tile = {kStripPixels, int64_t{g.chunk_columns} * g.chunks, g.filters};
    plan.workspace_bytes = std::max(plan.workspace_bytes, before + shape.packed_bytes);
    return make_col2im_fit(problem, std::move(shape));
  };
  Col2imPlan made{problem, plan_halves<Col2imFit>(plan, problem, caps, taps, fit_shape, take)};
  if (made.fits.half) {  // min_terms is compared with the terms of all taps
    int& terms = made.fits.half->params.min_terms;
    terms = static_cast<int>(terms * problem.R * problem.S / taps);
  }
  plan.shape = std::make_shared<Col2imPlan>(std::move(made));
  return plan;
}

}  // namespace

Engine cuda_col2im_engine() { return {EngineId::kCudaCol2im, "cuda_col2im", refuse, plan}; }

}  // namespace convx
