#pragma once

#include "core/buffers.h"
#include "core/plan.h"
#include "cuda/check.h"

namespace convx {

void launch_cuda_col2im(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

}  // namespace convx
