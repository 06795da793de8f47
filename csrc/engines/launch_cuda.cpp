#include "engines/engines.h"

#include "cuda/check.h"
#include "engines/cuda/cuda_engines.h"
#include "kernels/separate_pass.h"

namespace convx {

namespace {

void launch_engine(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                   const CudaContext& context) {
  const cudaStream_t stream = static_cast<cudaStream_t>(context.stream);
  const auto launch = [&](const char* engine, const auto& launch_engine) {
    launch_engine({engine, &problem, stream, context.get_blas}, plan, buffers);
  };
  switch (plan.engine) {
    case EngineId::kCudaGemm:
      return launch("cuda_gemm", launch_cuda_gemm);
    case EngineId::kCudaDirect:
      return launch("cuda_direct", launch_cuda_direct);
    case EngineId::kCudaLines:
      return launch("cuda_lines", launch_cuda_lines);
    case EngineId::kCudaPixels:
      return launch("cuda_pixels", launch_cuda_pixels);
    case EngineId::kCudaMma:
      return launch("cuda_mma", launch_cuda_mma);
    case EngineId::kCudaDepthwise:
      return launch("cuda_depthwise", launch_cuda_depthwise);
    case EngineId::kCudaPointwise:
      return launch("cuda_pointwise", launch_cuda_pointwise);
    case EngineId::kCudaGrouped:
      return launch("cuda_grouped", launch_cuda_grouped);
    case EngineId::kCudaBoxes:
      return launch("cuda_boxes", launch_cuda_boxes);
    case EngineId::kCudaBands:
      return launch("cuda_bands", launch_cuda_bands);
    case EngineId::kCudaDiagonal:
      return launch("cuda_diagonal", launch_cuda_diagonal);
    case EngineId::kCudaPhases:
      return launch("cuda_phases", launch_cuda_phases);
    case EngineId::kCudaCol2im:
      return launch("cuda_col2im", launch_cuda_col2im);
    case EngineId::kCudaWeightGrad:
      return launch("cuda_weight_grad", launch_cuda_weight_grad);
    case EngineId::kCpuGemm:
    case EngineId::kCpuDirect:
      break;
  }
  throw_launch_error({"launch_cuda", &problem, stream}, "choosing an engine",
                     "the plan is not for a CUDA device");
}

}  // namespace

void launch_cuda(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                 const CudaContext& context) {
  if (!plan.finishes_separately) return launch_engine(problem, plan, buffers, context);
  launch_engine(drop_fusion(problem), plan, buffers, context);
  apply_epilogue({"convx", &problem, static_cast<cudaStream_t>(context.stream)}, buffers);
}

}  // namespace convx
