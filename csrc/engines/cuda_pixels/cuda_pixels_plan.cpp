#include "engines/cuda_pixels/cuda_pixels_plan.h"

#include <algorithm>

#include "core/gather_view.h"
#include "engines/cuda_limits.h"
#include "engines/cuda_pixels/pixel_tiling.h"

namespace convx {
namespace {

PixelShape fit_shape(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math) {
  const GatherView view = make_gather_view(problem);
  return fit_pixel_shape(problem, caps, make_gather_axis(view.rows[0], false),
                         make_gather_axis(view.columns[0], false), make_pixel_tiling(math));
}

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (std::string large = refuse_large_images(p); !large.empty()) return large;
  if (fit_shape(p, caps, tensor_math(p)).filters == 0) {
    return "no tile fits in shared memory, or its images lie 2^31 elements apart";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaPixels;
  const TensorMath math = tensor_math(problem);
  const auto pixels = std::make_shared<PixelsPlan>();
  const auto take = [&](PixelShape shape, double more_microseconds) {
    plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
    plan.split = shape.splits;
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.packed_bytes + shape.partial_bytes);
    plan.predicted_us = shape.microseconds + more_microseconds;
    return make_pixel_fit(problem, std::move(shape));
  };
  const int64_t terms = problem.C / problem.groups * problem.R * problem.S;
  const bool tf32 = math == TensorMath::kTf32;
  const int min_terms = tf32 ? 0 : kMinHalfIeeeTerms;
  if (problem.dtype == DType::kFloat32 && terms >= 2 * min_terms) {
    DeviceCaps rest = caps;
    const int64_t scale_bytes = HalfScales::bytes(problem.K);
    rest.workspace_limit -= scale_bytes;
    PixelShape half =
        fit_shape(problem, rest, tf32 ? TensorMath::kHalfTf32 : TensorMath::kHalfIeee);
    PixelShape exact = fit_shape(problem, rest, math);
    if (half.filters > 0 && exact.filters > 0 &&
        half.microseconds + kHalfMicroseconds < exact.microseconds) {
      pixels->exact = take(std::move(exact), 0);
      pixels->half = take(std::move(half), kHalfMicroseconds);
      pixels->half->params.min_terms = min_terms;
      pixels->scale_bytes = scale_bytes;
      plan.workspace_bytes += scale_bytes;
    }
  }
  if (!pixels->half) pixels->exact = take(fit_shape(problem, caps, math), 0);
  plan.shape = pixels;
  return plan;
}

}  // namespace

Engine cuda_pixels_engine() { return {EngineId::kCudaPixels, "cuda_pixels", refuse, plan}; }

}  // namespace convx
