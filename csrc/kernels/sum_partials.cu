// The kernel behind sum_partials adds slices in order:
//
//   target[i] = partials[0][i] + partials[1][i] + ... + bias
//
// A thread computes one element per iteration of a grid-stride loop. No shared memory.
#include "kernels/sum_partials.h"

#include <cstdint>

#include "cuda/launch.h"
#include "device/convert.cuh"
#include "kernels/run_flag.cuh"

namespace convx {

// The slices are dense arrays [image][filter][row][column]. dense: the target is such an array too.
__global__ void sum_partials_kernel(const __grid_constant__ TensorParams p, DType dtype, int splits,
                                    int filters, bool dense) {
  if (must_return(p)) return;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.partial_stride;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = p.partials[i];
#pragma unroll 4
    for (int part = 1; part < splits; ++part) sum += p.partials[i + part * p.partial_stride];
    int64_t to = i;
    if (!dense || p.bias != nullptr) {
      int64_t rest = i;
      const int64_t column = rest % p.target_width;
      rest /= p.target_width;
      const int64_t row = rest % p.target_height;
      rest /= p.target_height;
      const int64_t filter = rest % filters;
      const int64_t image = rest / filters;
      if (p.bias != nullptr) sum += load_as<float>(dtype, p.bias, filter);
      to = image * p.target_n + filter * p.target_c + row * p.target_h + column * p.target_w;
    }
    store_as(dtype, p.target, to, sum);
  }
}

void sum_partials(const LaunchSite& site, const TensorParams& params, int splits) {
  const int64_t plane = int64_t{params.target_height} * params.target_width;
  const int64_t filters = params.partial_stride / plane / params.images;
  const bool dense = params.target_w == 1 && params.target_h == params.target_width &&
                     params.target_c == plane && params.target_n == plane * filters;
  const dim3 grid(count_loop_blocks(params.partial_stride, 256));
  launch_kernel<sum_partials_kernel>(site, grid, 256, 0, params, site.problem->dtype, splits,
                                     static_cast<int>(filters), dense);
}

}  // namespace convx
