// Launches cuda_boxes. The kernels of TF32 are compiled here, those of 16-bit operands in
// boxes_16bit.cu.
#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda/boxes/boxes_launch.cuh"
#include "engines/cuda/boxes/boxes_params.h"
#include "engines/cuda/cuda_engines.h"
#include "kernels/pixel_copies.h"

namespace convx {

extern template void launch_boxes<TensorMath::kBFloat16>(const LaunchSite&, const BoxesShape&,
                                                         const BoxesParams&);
extern template void launch_boxes<TensorMath::kFloat16>(const LaunchSite&, const BoxesShape&,
                                                        const BoxesParams&);

namespace {

constexpr int kClearThreads = 32;

__global__ void clear_taken_kernel(int* taken, int kinds) {
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int i = static_cast<int>(threadIdx.x); i < kinds; i += kClearThreads) taken[i] = 0;
}

// Resets the tile counters before a launch that uses them (TileOrder).
void clear_taken(const LaunchSite& site, const BoxesParams& p) {
  launch_early<clear_taken_kernel>(site, 1, kClearThreads, 0, p.taken,
                                   static_cast<int>(p.by_tile_kinds.divisor));
}

// Launches the kernels of one batch. packs_filters: the filters are not packed yet.
void launch_batch(const LaunchSite& site, const BoxesPlan& boxes, const Buffers& buffers,
                  bool packs_filters) {
  for (const BoxesFit& fit : boxes.launches) {
    const BoxesParams params = make_boxes_params(boxes.problem, fit, buffers);
    const bool is_first = &fit == boxes.launches.data();
    if (packs_filters && is_first && params.filter_order == BoxFilters::kPacked) {
      FilterPack pack = fit.pack;
      pack.filters = params.filters;
      pack.packed = buffers.workspace;
      pack_filters(site, pack, size_of(boxes.problem.dtype));
    }
    if (params.taken != nullptr) clear_taken(site, params);
    visit_math(fit.shape.math, [&]<TensorMath kMath>() {
      if constexpr (is_box_math(kMath)) launch_boxes<kMath>(site, fit.shape, params);
    });
  }
}

// A batch of images, of which channels_last copies stand in for some tensors.
void launch_copied_planes(const LaunchSite& site, const BoxesPlan& boxes, const Buffers& buffers,
                          int64_t batch) {
  const bool forward = boxes.problem.pass == Pass::kForward;
  Buffers own = buffers;
  void*& source = forward ? own.x : own.y;
  void*& target = forward ? own.y : own.x;
  const Strides& from = forward ? site.problem->x_strides : site.problem->y_strides;
  const Strides& to = forward ? site.problem->y_strides : site.problem->x_strides;
  const int64_t first_image = batch * boxes.problem.N, size = size_of(boxes.problem.dtype);
  source = static_cast<char*>(source) + first_image * from.n * size;
  target = static_cast<char*>(target) + first_image * to.n * size;
  char* const workspace = static_cast<char*>(buffers.workspace);
  // Planes become pixels, and the caller's pointer becomes that of the copy.
  const auto replace = [](PlaneCopy copy, void*& tensor, char* copied) {
    copy.planes = tensor;
    copy.pixels = copied;
    if (copy.exists()) tensor = copied;
    return copy;
  };
  const PlaneCopy read = replace(boxes.planes.source, source, workspace + boxes.source_offset);
  const PlaneCopy written = replace(boxes.planes.target, target, workspace + boxes.target_offset);
  if (read.exists()) gather_pixels(site, read);
  launch_batch(site, boxes, own, batch == 0);
  if (written.exists()) scatter_pixels(site, written);
}

}  // namespace

void launch_cuda_boxes(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& boxes = geometry_of<BoxesPlan>(plan);
  if (boxes.planes.bytes() > 0) {
    for (int64_t i = 0; i < boxes.batches; ++i) launch_copied_planes(site, boxes, buffers, i);
    return;
  }
  Buffers own = buffers;
  if (boxes.padding.count > 0) {
    void*& source = boxes.problem.pass == Pass::kForward ? own.x : own.y;
    CopiedPixels padding = boxes.padding;
    padding.source = source;
    padding.copied = static_cast<char*>(buffers.workspace) + boxes.padding_offset;
    copy_pixels(site, padding);
    source = padding.copied;
  }
  launch_batch(site, boxes, own, true);
}

}  // namespace convx
