// Cost model of cuda_mma.
#pragma once

#include "engines/cuda_pixel_tiles/pixel_shape.h"

namespace convx {

double predict_mma_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                                const PixelShape& shape);

}  // namespace convx
