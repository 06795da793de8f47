// Finding the scales of scaled fp16, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "kernels/measure_operands.cu"
