// cpu_direct: the same products as cpu_gemm, with every tap read from the padded image in place.
// Nothing is unfolded, but vectors that reach past the end of a row do work for nothing. Best for
// few channels (depthwise), 1x1 kernels, and widths that vectors divide well. Takes every problem.
//
// Plan::tile is that of the shared drivers: see cpu_driver/gather_driver.h and weight_driver.h;
// depthwise problems in channels_last have their own, see channelwise.h.
#pragma once

#include <string>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

std::string refuse_cpu_direct(const ConvProblem& problem, const DeviceCaps& caps);
Plan plan_cpu_direct(const ConvProblem& problem, const DeviceCaps& caps);

}  // namespace convx
