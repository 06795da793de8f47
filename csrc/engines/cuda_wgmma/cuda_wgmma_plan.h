// Hopper's tensor cores on windows of the flattened image (engines/cuda_window/window_shape.h).
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m filters and n positions per block, k channels per stage. Plan::split: parts of the
// reduction, summed in order by a second kernel.
Engine cuda_wgmma_engine();

}  // namespace convx
