// cuda_pixels in ieee precision, launches and kernels, run on the host from its
// own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_pixel_kernels.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda_pixels/pixels_ieee.cu"

namespace convx {

const char* emulate_pixels(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                           bool descending) {
  const emulator::Workspace workspace(fit.shape.packed_bytes + fit.shape.partial_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  emulator::descending = descending;
  launch_pixels_ieee({"cuda_pixels", &problem}, fit.shape,
                     make_pixel_params(problem, fit, buffers));
  emulator::descending = false;
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

}  // namespace convx
