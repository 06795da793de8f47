// The weight gradient on Hopper's tensor cores, for dense and grouped layers.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_weight_grad_engine();

}  // namespace convx
