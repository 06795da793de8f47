// cuda_col2im: input gradients of layers with few channels (col2im_geometry.h).
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_col2im_engine();

}  // namespace convx
