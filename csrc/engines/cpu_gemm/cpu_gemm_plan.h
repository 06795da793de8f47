// cpu_gemm: the convolution as a matrix product. The image is unfolded (im2col) one register-tile
// panel at a time, so the unfolded matrix never exists as a whole. Best if many target channels
// share the cost of unfolding.
//
// Plan::tile is that of the shared drivers (cpu_driver/gather_driver.h and weight_driver.h).
#pragma once

#include <string>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

std::string refuse_cpu_gemm(const ConvProblem& problem, const DeviceCaps& caps);
Plan plan_cpu_gemm(const ConvProblem& problem, const DeviceCaps& caps);

}  // namespace convx
