// The passes of cuda_gemm, each in a separate source file.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda/gemm/gemm_shape.h"

namespace convx {

void launch_gemm_gather(const LaunchSite& site, void* blas, const GemmShape& shape,
                        const Buffers& buffers);
// 1x1 layers without a column matrix (gemm_in_place.h).
void launch_gemm_in_place(const LaunchSite& site, void* blas, const GemmShape& shape,
                          const Buffers& buffers);
void launch_gemm_weight_grad(const LaunchSite& site, void* blas, const GemmShape& shape,
                             const Buffers& buffers);

}  // namespace convx
