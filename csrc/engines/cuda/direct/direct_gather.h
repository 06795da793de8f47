// Launches the gather kernel. float32 and the other dtypes are separate translation units.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda/direct/gather_fit.h"

namespace convx {

void launch_gather_float32(const LaunchSite& site, const GatherFit& fit, const Buffers& buffers);
void launch_gather_other(const LaunchSite& site, const GatherFit& fit, const Buffers& buffers);

}  // namespace convx
