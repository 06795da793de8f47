// Launches the kernels of a phase. One function per operand format; the .cu files instantiate them.
#pragma once

#include "cuda/check.h"
#include "engines/cuda/lines/window_fit.h"

namespace convx {

template <TensorMath kMath>
void launch_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& params);

}  // namespace convx
