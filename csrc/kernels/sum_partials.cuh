// Adds the partial sums of split-K slices, in order:
//
//   target[i] = partials[0][i] + partials[1][i] + ... + bias
//
// A thread computes one element per iteration of a grid-stride loop. No shared memory.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "device/convert.cuh"
#include "kernels/run_flag.cuh"

namespace convx {

// Params has the target, its extents and strides, and the slices, which are dense arrays
// [image][filter][row][column]. dense: the target is such an array too.
template <typename T, typename Params>
__global__ void sum_partials_kernel(const __grid_constant__ Params p, int filters, bool dense) {
  if (must_return(p)) return;
  const T* bias = static_cast<const T*>(p.bias);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.partial_stride;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = p.partials[i];
#pragma unroll 4
    for (int part = 1; part < p.splits; ++part) sum += p.partials[i + part * p.partial_stride];
    int64_t to = i;
    if (!dense || bias != nullptr) {
      int64_t rest = i;
      const int64_t column = rest % p.target_width;
      rest /= p.target_width;
      const int64_t row = rest % p.target_height;
      rest /= p.target_height;
      const int64_t filter = rest % filters;
      const int64_t image = rest / filters;
      if (bias != nullptr) sum += to_accumulate(bias[filter]);
      to = image * p.target_n + filter * p.target_c + row * p.target_h + column * p.target_w;
    }
    static_cast<T*>(p.target)[to] = round_to<T>(sum);
  }
}

template <typename T, typename Params>
void sum_partials(const LaunchSite& site, const Params& params) {
  const int64_t plane = int64_t{params.target_height} * params.target_width;
  const int64_t filters = params.partial_stride / plane / params.images;
  const bool dense = params.target_w == 1 && params.target_h == params.target_width &&
                     params.target_c == plane && params.target_n == plane * filters;
  launch_kernel<sum_partials_kernel<T, Params>>(site, count_loop_blocks(params.partial_stride, 256),
                                                256, 0, params, static_cast<int>(filters), dense);
}

}  // namespace convx
