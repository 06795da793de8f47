// Launches the kernels of a phase. One function per operand format; the .cu files instantiate them.
#pragma once

#include "cuda/check.h"
#include "engines/cuda/pixels/pixel_fit.h"

namespace convx {

template <TensorMath kMath>
void launch_pixels(const LaunchSite& site, const PixelShape& shape, const PixelParams& params);

template <TensorMath kMath>
void launch_mma(const LaunchSite& site, const PixelShape& shape, const PixelParams& params);

}  // namespace convx
