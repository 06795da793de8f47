// The direct engine: a shared-memory tiled kernel that gathers the image itself. Always applies.
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m filters and n pixels (or columns of the weight gradient) per block, k the index of
// the compiled tile. Plan::split: parts of the weight gradient's pixels. Plan::shape: GatherFit, or
// WeightGradFit.
Engine cuda_direct_engine();

}  // namespace convx
