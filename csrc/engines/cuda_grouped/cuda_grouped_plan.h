// cuda_grouped: grouped layers with few channels and filters per group, in one pass over memory.
//
// Plan::tile: output rows, output columns and groups of a block. In channels_last the third number
// is the filters of a block.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_grouped_engine();

}  // namespace convx
