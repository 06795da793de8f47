// cuda_grouped: few channels and filters per group, at the speed of memory.
//
// Plan::tile: output rows, output columns, and groups of a block; of channels_last, filters.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_grouped_engine();

}  // namespace convx
