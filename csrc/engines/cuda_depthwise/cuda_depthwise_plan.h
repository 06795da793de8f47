// cuda_depthwise: depthwise layers with FFMA, in one pass over memory.
//
// Plan::tile: output rows, output columns, and planes (NCHW) or channels (channels_last) of a
// block.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_depthwise_engine();

}  // namespace convx
