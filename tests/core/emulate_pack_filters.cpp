// Packing of filters, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "engines/cuda_pack_filters.cu"
