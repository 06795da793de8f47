// Tensor cores with pixels as rows, gathered from shared memory into registers.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_pixels_engine();

}  // namespace convx
