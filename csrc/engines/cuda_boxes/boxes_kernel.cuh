// The convolution of boxes on Hopper's tensor cores.
//
// A block: 3 warpgroups. Two multiply and store; of the third, one warp copies. Blocks are
// persistent: block b takes tiles b, b + gridDim.x, and so on.
#pragma once

#include "cuda/boxed_tensor.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda_boxes/boxes_copy.cuh"
#include "engines/cuda_boxes/boxes_multiply.cuh"
#include "engines/cuda_boxes/boxes_store.cuh"

namespace convx {

struct BoxesMaps {
  TensorMap source, filters, target;
};

// What tensors of a form are copied, multiplied and stored by.
template <TensorMath kMath, BoxForm kForm>
struct BoxParts;
template <TensorMath kMath>
struct BoxParts<kMath, BoxForm::kPixels> {
  using Source = PixelCopy<kMath>;
  using Loader = PixelFragments<kMath>;
  using Staging = PixelStaging<kMath>;
};
template <TensorMath kMath>
struct BoxParts<kMath, BoxForm::kLines> {
  using Source = LineCopy<kMath>;
  using Loader = LineFragments<kMath>;
  using Staging = LineStaging<kMath>;
};
template <TensorMath kMath>
struct BoxParts<kMath, BoxForm::kImages> {
  using Source = ImageCopy<kMath>;
  using Loader = ImageFragments<kMath>;
  using Staging = ImageStaging<kMath>;
};

template <TensorMath kMath, int kFilters, BoxForm kForm>
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
  using Parts = BoxParts<kMath, kForm>;
  constexpr bool kShares = most_boxes_per_sm(kFilters) == 2;
  if (threadIdx.x < kBoxMultipliers) {
    take_registers<kShares ? 104 : 232>();
    BoxMultiplier<kMath, kFilters, typename Parts::Loader> multiplier(p, ring);
    BoxStorer<typename Parts::Staging, kFilters> storer(p, ring, &maps.target);
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
      copy_boxes<typename Parts::Source, kFilters>(p, ring, &maps.source, &maps.filters);
    }
  }
#endif
}

}  // namespace convx
