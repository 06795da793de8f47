// What is launched before a window kernel.
#pragma once

#include "cuda/launch.h"
#include "engines/cuda_window/pack_filters.cuh"

namespace convx {

template <TensorMath kMath, typename T>
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

}  // namespace convx
