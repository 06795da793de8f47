// cuda_phases: strided input gradients as convolutions with stride 1, which other engines compute
// (phases_shape.h).
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_phases_engine();

}  // namespace convx
