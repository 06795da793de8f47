// Resets the tile counters before a launch that uses them (boxes_order.cuh).
#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda/boxes/boxes_passes.h"

namespace convx {
namespace {

constexpr int kClearThreads = 32;

__global__ void clear_taken_kernel(int* taken, int kinds) {
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int i = static_cast<int>(threadIdx.x); i < kinds; i += kClearThreads) taken[i] = 0;
}

}  // namespace

void clear_taken(const LaunchSite& site, const BoxesParams& p) {
  launch_early<clear_taken_kernel>(site, dim3(1), kClearThreads, 0, p.taken,
                                   static_cast<int>(p.by_tile_kinds.divisor));
}

}  // namespace convx
