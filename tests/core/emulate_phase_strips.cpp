// Depthwise input gradients with stride 2, run on the host from their own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_phase_strips.h"
#include "engines/cuda/depthwise/depthwise_phase_strips.cu"

namespace convx {

void emulate_phase_strips(const ConvProblem& problem, const PhaseStripFit& fit,
                          const Buffers& buffers) {
  launch_depthwise_phase_strips({"cuda_depthwise", &problem}, fit, buffers);
}

}  // namespace convx
