// Hopper's tensor cores on windows of the flattened image (engines/cuda_lines/window_shape.h),
// which is written to memory first.
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m filters and n positions per block, k channels per stage. Plan::split: parts of the
// reduction, summed in order by a second kernel.
Engine cuda_lines_engine();

}  // namespace convx
