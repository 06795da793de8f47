// Engine cuda_boxes: convolution on Hopper's tensor cores with TMA boxes (boxes_shape.h).
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m pixels and n filters per block, k channels per stage.
Engine cuda_boxes_engine();

}  // namespace convx
