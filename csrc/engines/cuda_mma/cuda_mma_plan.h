// Pixels gathered into registers, multiplied by the tensor cores of sm_80 and later.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_mma_engine();

}  // namespace convx
