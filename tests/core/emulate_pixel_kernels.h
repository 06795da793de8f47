#pragma once

#include "engines/cuda_pixel_tiles/pixel_fit.h"

namespace convx {

// Runs a plan of cuda_pixels in ieee precision on the host; the workspace is its own. descending: a
// block's last thread goes first. Returns what went wrong, or null.
const char* emulate_pixels(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                           bool descending);

}  // namespace convx
