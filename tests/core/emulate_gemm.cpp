// cuda_gemm, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_gemm.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/gemm/blas_scope.cpp"
#include "engines/cuda/gemm/in_place_launch.cu"
#include "engines/cuda/gemm/gemm_launch.cu"
#include "engines/cuda/gemm/gemm_weight_grad.cu"

namespace convx {

const char* emulate_gemm(const ConvProblem& problem, const Plan& plan, Buffers buffers) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  launch_cuda_gemm({"cuda_gemm", &problem}, plan, buffers);
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

}  // namespace convx
