#include "engines/cuda_boxes/cuda_boxes_plan.h"

#include <algorithm>

#include "engines/box_tensors.h"
#include "engines/cuda_boxes/boxes_params.h"
#include "engines/cuda_limits.h"
#include "engines/dense_pixels.h"

namespace convx {
namespace {

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma_gather(p, caps); !refusal.empty()) return refusal;
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  if (p.dtype == DType::kFloat32 && p.precision != Precision::kTf32) {
    return "it computes float32 as TF32 only";
  }
  if (p.groups > 1) return "it computes one group only";
  if (p.N == 0) return "there are no images";
  if (!find_box_form(p)) {
    return "it takes channels_last tensors whose pixels are multiples of 16 bytes, and 1x1 layers "
           "whose planes are, or have up to 256 pixels of channels in units of 16 bytes";
  }
  if (p.pass == Pass::kForward && std::max(p.stride.h, p.stride.w) > kMaxBoxStep) {
    return "the stride is above 8";
  }
  for (const GatherPhase& phase : make_gather_phases(p)) {
    const BoxesShape shape = fit_boxes_shape(p, caps, phase);
    if (shape.packed_bytes > caps.workspace_limit) {
      return "packed filters do not fit in the workspace";
    }
    if (shape.tiles() > kMaxExtent) return "it has more than 2^29 tiles";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaBoxes;
  const bool pixels = find_box_form(problem) == BoxForm::kPixels;
  BoxesPlan boxes{pixels ? flatten_pixels(problem, 1) : problem, {}};
  for (const GatherPhase& phase : make_gather_phases(boxes.problem)) {
    BoxesShape shape = fit_boxes_shape(boxes.problem, caps, phase);
    plan.tile = {shape.box.pixels(), shape.filters, box_chunk(shape.math)};
    plan.predicted_us += shape.microseconds;
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.packed_bytes);
    boxes.phases.push_back(make_boxes_fit(boxes.problem, std::move(shape)));
  }
  plan.shape = std::make_shared<BoxesPlan>(std::move(boxes));
  return plan;
}

}  // namespace

Engine cuda_boxes_engine() { return {EngineId::kCudaBoxes, "cuda_boxes", refuse, plan}; }

}  // namespace convx
