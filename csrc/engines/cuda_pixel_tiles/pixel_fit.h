// Turns a shape into kernel parameters.
#pragma once

#include "core/buffers.h"
#include "engines/cuda_pixel_tiles/pixel_params.h"

namespace convx {

// A shape, and the parameters that do not depend on the call's buffers. Plans store it.
struct PixelFit {
  PixelShape shape;
  PixelParams params;
};

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape);

// The parameters of a call. offset: start of this launch's part of the workspace.
PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                              int64_t offset = 0);

}  // namespace convx
