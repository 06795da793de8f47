// Forward passes and input gradients on Hopper's tensor cores: an implicit GEMM over tiles of the
// flattened, padded image (window_shape.h). docs/engines/cuda_lines.md describes it.
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m filters and n positions per block, k channels per stage. Plan::split: split-K
// slices, which a second kernel adds in order.
Engine cuda_lines_engine();

}  // namespace convx
