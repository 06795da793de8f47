#include "engines/cuda/boxes/boxes_passes.h"
#include "engines/cuda/cuda_engines.h"
#include "kernels/pixel_copy.h"

namespace convx {

void launch_cuda_boxes(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& boxes = *static_cast<const BoxesPlan*>(plan.shape.get());
  Buffers own = buffers;
  if (boxes.padding.count > 0) {
    void*& source = boxes.problem.pass == Pass::kForward ? own.x : own.y;
    CopiedPixels padding = boxes.padding;
    padding.source = source;
    padding.copied = static_cast<char*>(buffers.workspace) + boxes.padding_offset;
    copy_pixels(site, padding);
    source = padding.copied;
  }
  for (const BoxesFit& fit : boxes.launches) {
    const BoxesParams params = make_boxes_params(boxes.problem, fit, own);
    const bool is_first = &fit == boxes.launches.data();
    if (is_first && params.filter_order == BoxFilters::kPacked) {
      FilterPack pack = fit.pack;
      pack.filters = params.filters;
      pack.packed = own.workspace;
      pack_filters(site, pack, size_of(boxes.problem.dtype));
    }
    const auto launch = fit.shape.math == TensorMath::kTf32       ? launch_boxes_tf32
                        : fit.shape.math == TensorMath::kBFloat16 ? launch_boxes_bfloat16
                                                                  : launch_boxes_float16;
    if (params.taken != nullptr) clear_taken(site, params);
    launch(site, fit.shape, params);
  }
}

}  // namespace convx
