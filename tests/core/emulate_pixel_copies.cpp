// Copies of pixels, run on the host from their own source.
#include "emulated_cuda/run_grid.h"
//
#include "kernels/pixel_copies.cu"
