// Engine cuda_pixels: wgmma with pixels as rows, gathered from shared memory into registers.
#pragma once

#include "core/engine.h"
#include "engines/cuda_pixel_tiles/pixel_fit.h"
#include "engines/half_plan.h"

namespace convx {

using PixelsPlan = PhasedPlan<PixelFit>;

Engine cuda_pixels_engine();

}  // namespace convx
