// cpu_direct: the same matrix product as cpu_gemm, but every tap is read from the padded image in
// place. Nothing is unfolded, but vectors that reach past the end of a row do unused work. Best for
// few channels (depthwise), 1x1 kernels, and widths that are multiples of a vector. Takes every
// problem.
//
// Plan::tile is that of the shared drivers (cpu_driver/gather_driver.h and weight_driver.h), or of
// channelwise.h for depthwise problems in channels_last.
#pragma once

#include <string>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

std::string refuse_cpu_direct(const ConvProblem& problem, const DeviceCaps& caps);
Plan plan_cpu_direct(const ConvProblem& problem, const DeviceCaps& caps);

}  // namespace convx
