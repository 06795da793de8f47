#pragma once

#include "core/buffers.h"
#include "core/plan.h"
#include "cuda/check.h"
#include "engines/launch_cuda.h"

namespace convx {

void launch_cuda_phases(const LaunchSite& site, const Plan& plan, const Buffers& buffers,
                        const CudaContext& context);

}  // namespace convx
