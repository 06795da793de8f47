#include "engines/cuda_boxes/cuda_boxes_launch.h"

#include "engines/cuda_boxes/boxes_passes.h"
#include "engines/cuda_pixel_copy.h"

namespace convx {
namespace {

void pad_source(const LaunchSite& site, const SourcePadding& padding, const void* source,
                void* padded) {
  copy_pixels(site, {.source = source,
                     .copied = padded,
                     .element_bytes = padding.element_bytes,
                     .pixel_bytes = padding.pixel_bytes,
                     .padded_bytes = padding.padded_bytes,
                     .rows = padding.rows,
                     .columns = padding.columns,
                     .n = padding.from.n,
                     .h = padding.from.h,
                     .w = padding.from.w,
                     .first = 0,
                     .count = padding.images * padding.rows * padding.columns});
}

}  // namespace

void launch_cuda_boxes(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& boxes = *static_cast<const BoxesPlan*>(plan.shape.get());
  Buffers own = buffers;
  if (boxes.padding.bytes > 0) {
    void*& source = boxes.problem.pass == Pass::kForward ? own.x : own.y;
    void* const padded = static_cast<char*>(buffers.workspace) + boxes.padding_offset;
    pad_source(site, boxes.padding, source, padded);
    source = padded;
  }
  for (const BoxesFit& fit : boxes.phases) {
    const BoxesParams params = make_boxes_params(boxes.problem, fit, own);
    const auto launch = fit.shape.math == TensorMath::kTf32       ? launch_boxes_tf32
                        : fit.shape.math == TensorMath::kBFloat16 ? launch_boxes_bfloat16
                                                                  : launch_boxes_float16;
    launch(site, fit.shape, params);
  }
}

}  // namespace convx
