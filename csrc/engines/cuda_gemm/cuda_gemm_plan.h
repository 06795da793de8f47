// Engine cuda_gemm: cuBLAS on a column matrix that is built in chunks which stay in L2, or on the
// tensors themselves.
#pragma once

#include "core/engine.h"

namespace convx {

// Plan::tile: m output rows, n pixels along a row (images side by side) and k images per chunk.
// Plan::shape: GemmShape.
Engine cuda_gemm_engine();

}  // namespace convx
