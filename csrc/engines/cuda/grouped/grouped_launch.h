// Launch functions of the grouped kernels. Each is compiled in its own translation unit.
#pragma once

#include "cuda/check.h"
#include "engines/cuda/grouped/grouped_fit.h"
#include "engines/cuda/grouped/grouped_pixel_fit.h"

namespace convx {

void launch_grouped_float32(const LaunchSite& site, const GroupedFit& fit,
                            const GroupedParams& params);
void launch_grouped_16bit(const LaunchSite& site, const GroupedFit& fit,
                          const GroupedParams& params);
void launch_grouped_pixels(const LaunchSite& site, const GroupedPixelFit& fit,
                           const GroupedPixelParams& params);
void launch_grouped_mma(const LaunchSite& site, const GroupedMmaFit& fit,
                        const GroupedMmaParams& params);

}  // namespace convx
