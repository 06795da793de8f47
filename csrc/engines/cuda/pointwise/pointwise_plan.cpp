#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pointwise/pointwise_fit.h"
#include "planning/refusals.h"

namespace convx {
namespace {

std::optional<PointwiseShape> fit_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                        TensorMath math) {
  PointwiseShape shape = fit_pointwise_shape(problem, caps, math);
  if (shape.filters == 0) return {};
  return shape;
}

// All but whether the filters fit.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.taps() != 1) return "it computes 1x1 kernels only";
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.pass == Pass::kInputGrad && p.stride != Hw{1, 1}) {
    return "it computes the input gradient for stride 1 only";
  }
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  return refuse_many_pixels(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaPointwise;
  PointwisePlan made;
  std::optional<HalvedPlan<PointwiseFit>> products = plan_halves<PointwiseFit>(
      plan, problem, caps, 1,
      [&](const DeviceCaps& some, TensorMath math, double) {
        return fit_shape(problem, some, math);
      },
      [&](PointwiseShape shape, int64_t before) {
        plan.tile = {kPointwisePixels, shape.filters, pointwise_chunk(shape.math)};
        plan.workspace_bytes = before;
        return make_pointwise_fit(problem, std::move(shape));
      });
  if (!products) return Refusal{"64 filters of so many channels do not fit in shared memory"};
  made.products = std::move(*products);
  // If a tensor turns out not to be aligned, `products` runs instead.
  made.few = fit_few_filters(problem, caps);
  if (made.few && made.few->microseconds < plan.predicted_us) {
    plan.predicted_us = made.few->microseconds;
    plan.tile = {kFewUnits * 16 / size_of(problem.dtype), made.few->params.group_filters, 1};
  } else {
    made.few.reset();
  }
  plan.geometry = make_geometry(std::move(made));
  return plan;
}

}  // namespace

void PointwiseShape::describe(Text& out) const {
  out << "tile " << kPointwisePixels << " pixels x " << filters << " filters";
  describe_stages(out, stages);
  if (raw_stages > 0) out << ", " << raw_stages << " bulk copies ahead";
  out << ", " << (math == TensorMath::kTf32 ? "2 x bfloat16" : name_of(math));
}

void PointwisePlan::describe(Text& out) const {
  if (few) {
    out << "tile " << kFewUnits << " 16-byte units x "
        << count_text(few->params.group_filters, "filter") << ", if aligned, else ";
  }
  describe_halves(out, products);
}

Engine cuda_pointwise_engine() { return {EngineId::kCudaPointwise, "cuda_pointwise", consider}; }

}  // namespace convx
