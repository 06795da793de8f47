// cuda_direct: tiles in shared memory, gathered from the image by the kernel. Always applies.
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m filters and n pixels (or columns of the weight gradient) per block, and in k the
// index of the compiled tile. Plan::split: split-K slices of the weight gradient. Plan::shape:
// GatherFit or WeightGradFit.
Engine cuda_direct_engine();

}  // namespace convx
