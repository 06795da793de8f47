// Adding the partial sums of split-K slices, run on the host from its own
// source.
#include "emulated_cuda/run_grid.h"
//
#include "kernels/sum_partials.cu"
