// Finding the scales of scaled fp16 and adding the partial sums of split-K slices, run on the host
// from their own source.
#include "emulated_cuda/run_grid.h"
//
#include "kernels/around_mma.cu"
