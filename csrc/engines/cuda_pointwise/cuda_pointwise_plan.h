// Engine cuda_pointwise: 1x1 convolution on tensor cores, in one pass over memory.
//
// Plan::tile: pixels of a tile, filters of a block, channels of a chunk.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_pointwise_engine();

}  // namespace convx
