// Cost model of cuda_pixels.
#pragma once

#include "engines/cuda_pixel_tiles/pixel_shape.h"

namespace convx {

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const PixelShape& shape);

}  // namespace convx
