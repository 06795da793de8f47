#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda/boxes/boxes_params.h"
#include "engines/cuda/cuda_engines.h"
#include "kernels/pixel_copy.h"

namespace convx {

// Launches the kernels of a launch; boxes_launch.cuh has it, one .cu file per operand format.
template <TensorMath kMath>
void launch_boxes(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& params);

namespace {

constexpr int kClearThreads = 32;

__global__ void clear_taken_kernel(int* taken, int kinds) {
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int i = static_cast<int>(threadIdx.x); i < kinds; i += kClearThreads) taken[i] = 0;
}

// Resets the tile counters before a launch that uses them (TileOrder).
void clear_taken(const LaunchSite& site, const BoxesParams& p) {
  launch_early<clear_taken_kernel>(site, dim3(1), kClearThreads, 0, p.taken,
                                   static_cast<int>(p.by_tile_kinds.divisor));
}

}  // namespace

void launch_cuda_boxes(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& boxes = geometry_of<BoxesPlan>(plan);
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
    if (params.taken != nullptr) clear_taken(site, params);
    visit_math(fit.shape.math, [&]<TensorMath kMath>() {
      if constexpr (is_box_math(kMath)) launch_boxes<kMath>(site, fit.shape, params);
    });
  }
}

}  // namespace convx
