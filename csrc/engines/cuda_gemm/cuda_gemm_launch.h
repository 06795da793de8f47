#pragma once

#include "core/buffers.h"
#include "core/plan.h"
#include "cuda/check.h"

namespace convx {

void launch_cuda_gemm(const LaunchSite& site, const Plan& plan, const Buffers& buffers, void* blas);

}  // namespace convx
