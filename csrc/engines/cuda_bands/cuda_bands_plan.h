// cuda_bands: depthwise layers of large kernels in TF32 and 16 bits, whose rows of taps are band
// matrices for the tensor cores.
//
// Plan::tile: output rows of a block, of all its images, output columns, and source columns that a
// band spans.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_bands_engine();

}  // namespace convx
