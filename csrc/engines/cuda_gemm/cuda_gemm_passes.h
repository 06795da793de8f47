// The passes of cuda_gemm, one source file each.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"

namespace convx {

// What determines the chunks: the plan's workspace size, and the device.
struct GemmLimits {
  int64_t workspace_bytes;
  int sm_count;
};

void launch_gemm_gather(const LaunchSite& site, void* blas, const Buffers& buffers,
                        const GemmLimits& limits);
void launch_gemm_weight_grad(const LaunchSite& site, void* blas, const Buffers& buffers,
                             const GemmLimits& limits);

}  // namespace convx
