// What is launched before and after a window kernel.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "engines/cuda_window/pack_filters.cuh"

namespace convx {

template <WindowMath kMath, typename T>
void pack_filters(const LaunchSite& site, const WindowShape& shape, const WindowParams& params) {
  constexpr int64_t kStagingLimit = 64 << 10;
  const int64_t row_bytes = int64_t{4} * params.chunk_channels * params.taps;
  int rows = 8;
  while (rows > 1 && rows * row_bytes > kStagingLimit) rows /= 2;
  const int64_t filters =
      int64_t{kWindowFilters} * shape.filter_groups * shape.filter_tiles * site.problem->groups;
  const dim3 grid(static_cast<unsigned>(filters / rows), static_cast<unsigned>(params.chunks));
  launch_kernel<pack_filters_kernel<kMath, T>>(site, grid, 128, rows * row_bytes, params, rows);
}

// target = bias + the parts' sums, first part first.
template <typename T>
__global__ void sum_partials_kernel(const __grid_constant__ WindowParams p) {
  const int64_t plane = static_cast<int64_t>(p.target_height) * p.target_width;
  const int filters = static_cast<int>(p.partial_stride / plane / p.images);
  const T* bias = static_cast<const T*>(p.bias);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.partial_stride;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = p.partials[i];
    for (int part = 1; part < p.splits; ++part) sum += p.partials[i + part * p.partial_stride];
    int64_t rest = i;
    const int64_t column = rest % p.target_width;
    rest /= p.target_width;
    const int64_t row = rest % p.target_height;
    rest /= p.target_height;
    const int64_t filter = rest % filters;
    const int64_t image = rest / filters;
    if (bias != nullptr) sum += to_accumulate(bias[filter]);
    static_cast<T*>(p.target)[image * p.target_n + filter * p.target_c + row * p.target_h +
                              column * p.target_w] = round_to<T>(sum);
  }
}

template <typename T>
void sum_partials(const LaunchSite& site, const WindowParams& params) {
  launch_kernel<sum_partials_kernel<T>>(site, count_loop_blocks(params.partial_stride, 256), 256, 0,
                                        params);
}

}  // namespace convx
