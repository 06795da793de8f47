// Engine cuda_mma: mma.sync (sm_80 and later) with pixels gathered into registers.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_mma_engine();

}  // namespace convx
