// Launches the kernels of one call, for one operand format: measure_kernel (scaled fp16 only),
// pack_col2im_kernel, col2im_kernel.
#pragma once

#include "cuda/launch.h"
#include "engines/cuda/input_grad/col2im_kernel.cuh"
#include "engines/cuda/input_grad/col2im_pack.cuh"
#include "engines/cuda/input_grad/col2im_passes.h"
#include "kernels/measure_halves.cuh"

namespace convx {

template <TensorMath kMath, int kColumns, int... kOthers>
void multiply_col2im(const LaunchSite& site, const Col2imParams& params) {
  if (params.g.columns == kColumns) {
    const dim3 grid(static_cast<unsigned>(params.g.blocks));
    const auto bytes = static_cast<size_t>(params.g.shared_bytes);
    if (params.g.y_strides.c == 1 && params.g.y_strides.w != 1) {
      launch_early<col2im_kernel<kMath, kColumns, false>>(site, grid, kCol2imThreads, bytes,
                                                          params);
    } else {
      launch_early<col2im_kernel<kMath, kColumns, true>>(site, grid, kCol2imThreads, bytes, params);
    }
  } else if constexpr (sizeof...(kOthers) > 0) {
    multiply_col2im<kMath, kOthers...>(site, params);
  } else {
    throw_launch_error(site, "choosing a kernel", "no such number of columns");
  }
}

template <TensorMath kMath>
void launch_col2im(const LaunchSite& site, const Col2imParams& params) {
  if constexpr (is_half(kMath)) measure(site, params);
  const Col2imGeometry& g = params.g;
  const int64_t threads = int64_t{params.groups} * g.channel_tiles * g.component_bytes() / 16;
  const int64_t blocks = (threads + kCol2imPackThreads - 1) / kCol2imPackThreads;
  launch_early<pack_col2im_kernel<kMath>>(site, dim3(static_cast<unsigned>(blocks)),
                                          kCol2imPackThreads, 0, params);
  if constexpr (count_planes(kMath) == 1) {
    multiply_col2im<kMath, 64, 96, 128, 160>(site, params);
  } else {
    multiply_col2im<kMath, 64, 96>(site, params);
  }
}

}  // namespace convx
