#include "engines/cuda_boxes/cuda_boxes_plan.h"

#include <algorithm>

#include "core/arithmetic.h"
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
  const CopiedPixels padding = find_source_padding(p);
  const ConvProblem padded = with_padded_source(p, padding);
  if (!find_box_form(padded)) {
    return "it takes channels_last tensors, and 1x1 layers whose planes are multiples of 16 bytes, "
           "or have up to 256 pixels of channels in units of 16 bytes";
  }
  if (p.pass == Pass::kForward && std::max(p.stride.h, p.stride.w) > kMaxBoxStep) {
    return "the stride is above 8";
  }
  for (const GatherPhase& phase : make_gather_phases(padded)) {
    const BoxesShape shape = fit_boxes_shape(padded, caps, phase);
    if (shape.workspace_bytes > caps.workspace_limit) {
      return "packed filters do not fit in the workspace";
    }
    if (padding.count > 0 && round_up(shape.workspace_bytes, kPaddingAlignment) + padding.bytes() >
                                 caps.workspace_limit) {
      return "a padded source does not fit in the workspace";
    }
    if (shape.tiles() > kMaxExtent) return "it has more than 2^29 tiles";
  }
  return "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCudaBoxes;
  const CopiedPixels padding = find_source_padding(problem);
  const ConvProblem padded = with_padded_source(problem, padding);
  const bool pixels = find_box_form(padded) == BoxForm::kPixels;
  BoxesPlan boxes{pixels ? flatten_pixels(padded, 1) : padded, {}, padding};
  for (const GatherPhase& phase : make_gather_phases(boxes.problem)) {
    BoxesShape shape = fit_boxes_shape(boxes.problem, caps, phase);
    plan.tile = {shape.box.pixels(), shape.filters, box_chunk(shape.math)};
    plan.predicted_us += shape.microseconds;
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.workspace_bytes);
    boxes.phases.push_back(make_boxes_fit(boxes.problem, std::move(shape)));
  }
  if (padding.count > 0) {
    plan.predicted_us += predict_padding(padding);
    boxes.padding_offset = round_up(plan.workspace_bytes, kPaddingAlignment);
    plan.workspace_bytes = boxes.padding_offset + padding.bytes();
  }
  plan.shape = std::make_shared<BoxesPlan>(std::move(boxes));
  return plan;
}

}  // namespace

Engine cuda_boxes_engine() { return {EngineId::kCudaBoxes, "cuda_boxes", refuse, plan}; }

}  // namespace convx
