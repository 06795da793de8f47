// Packing of filters, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "kernels/pack_filters.cu"
