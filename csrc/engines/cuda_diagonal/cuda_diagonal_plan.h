// cuda_diagonal: groups of few channels in channels_last. The weights become block-diagonal
// matrices for the tensor cores.
//
// Plan::tile: output rows, output columns and channels of a block.
#pragma once

#include "core/engine.h"

namespace convx {

Engine cuda_diagonal_engine();

}  // namespace convx
