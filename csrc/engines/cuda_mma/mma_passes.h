// Launch functions, one per arithmetic, each compiled in a separate file.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_pixel_tiles/pixel_fit.h"

namespace convx {

void launch_mma_tf32(const LaunchSite&, const PixelShape&, const PixelParams&);
void launch_mma_ieee(const LaunchSite&, const PixelShape&, const PixelParams&);
void launch_mma_bfloat16(const LaunchSite&, const PixelShape&, const PixelParams&);
void launch_mma_float16(const LaunchSite&, const PixelShape&, const PixelParams&);

}  // namespace convx
