// The gemm engine: a column matrix built in chunks that stay in L2, and cuBLAS.
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m output rows, n pixels along a row (images side by side) and k images per chunk.
// Plan::shape: GemmShape.
Engine cuda_gemm_engine();

}  // namespace convx
