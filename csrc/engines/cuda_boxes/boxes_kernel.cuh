// The convolution of boxes on Hopper's tensor cores.
//
// A block: 3 warpgroups. Two multiply and store; of the third, one warp copies. Blocks are
// persistent: block b takes tiles b, b + gridDim.x, and so on.
#pragma once

#include <type_traits>

#include "cuda/boxed_tensor.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda_boxes/boxes_copy.cuh"
#include "engines/cuda_boxes/boxes_multiply.cuh"
#include "engines/cuda_boxes/boxes_store.cuh"

namespace convx {

struct BoxesMaps {
  TensorMap source, filters, target;
};

template <TensorMath kMath, int kFilters, bool kPlanes>
__global__ void __launch_bounds__(kBoxThreads, most_boxes_per_sm(kFilters))
    boxes_kernel(const __grid_constant__ BoxesParams p, const __grid_constant__ BoxesMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  const BoxesRing ring(p, (shared_address(unaligned) + 1023) & ~1023u);
  if (threadIdx.x == 0) ring.init(p);
  wait_for_kernels_before();
  let_next_kernel_start();
  __syncthreads();
  // Together what the block starts with: 80 per thread where two share a multiprocessor, else 168.
  constexpr bool kShares = most_boxes_per_sm(kFilters) == 2;
  if (threadIdx.x < kBoxMultipliers) {
    take_registers<kShares ? 104 : 232>();
    BoxMultiplier<kMath, kFilters, kPlanes> multiplier(p, ring);
    using Staging = std::conditional_t<kPlanes, PlaneStaging<kMath>, PixelStaging<kMath>>;
    BoxStorer<Staging, kFilters> storer(p, ring, &maps.target);
    multiplier.take_filters();
#pragma unroll 1
    for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
      WgmmaSums<kFilters> sums;
      multiplier.multiply(sums);
      storer.store(sums, index);
    }
    storer.finish();
  } else {
    give_registers<kShares ? 32 : 40>();
    if (threadIdx.x < kBoxMultipliers + 32) {
      using Source = std::conditional_t<kPlanes, PlaneCopy<kMath>, PixelCopy<kMath>>;
      copy_boxes<Source, kFilters>(p, ring, &maps.source, &maps.filters);
    }
  }
#endif
}

}  // namespace convx
