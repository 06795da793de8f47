// From a problem's shape to what its kernels are launched with.
#pragma once

#include "core/buffers.h"
#include "engines/cuda_pixel_tiles/pixel_params.h"

namespace convx {

// What a plan remembers: the shape, and all parameters that do not depend on the call.
struct PixelFit {
  PixelShape shape;
  PixelParams params;
};

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape);

// The parameters of a call. offset: where in the workspace all of it starts.
PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                              int64_t offset = 0);

}  // namespace convx
