// cuda_bands: depthwise layers with large kernels in TF32 and 16 bits. Each row of taps becomes a
// band matrix for the tensor cores.
//
// Plan::tile: output rows of a block (over all its images), output columns, and the source columns
// that a band spans.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_bands_engine();

}  // namespace convx
