// The passes of cuda_gemm, one source file each.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda_gemm/gemm_shape.h"

namespace convx {

void launch_gemm_gather(const LaunchSite& site, void* blas, const GemmShape& shape,
                        const Buffers& buffers);
void launch_gemm_weight_grad(const LaunchSite& site, void* blas, const GemmShape& shape,
                             const Buffers& buffers);

}  // namespace convx
