#include "engines/launch_cuda.h"

#include "engines/cuda_bands/cuda_bands_launch.h"
#include "engines/cuda_boxes/cuda_boxes_launch.h"
#include "engines/cuda_col2im/cuda_col2im_launch.h"
#include "engines/cuda_depthwise/cuda_depthwise_launch.h"
#include "engines/cuda_diagonal/cuda_diagonal_launch.h"
#include "engines/cuda_direct/cuda_direct_launch.h"
#include "engines/cuda_gemm/cuda_gemm_launch.h"
#include "engines/cuda_grouped/cuda_grouped_launch.h"
#include "engines/cuda_lines/cuda_lines_launch.h"
#include "engines/cuda_mma/cuda_mma_launch.h"
#include "engines/cuda_phases/cuda_phases_launch.h"
#include "engines/cuda_pixels/cuda_pixels_launch.h"
#include "engines/cuda_pointwise/cuda_pointwise_launch.h"
#include "engines/cuda_weight_grad/cuda_weight_grad_launch.h"

namespace convx {

void launch_cuda(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                 const CudaContext& context) {
  const cudaStream_t stream = static_cast<cudaStream_t>(context.stream);
  switch (plan.engine) {
    case EngineId::kCudaGemm:
      return launch_cuda_gemm({"cuda_gemm", &problem, stream}, plan, buffers, context.get_blas());
    case EngineId::kCudaDirect:
      return launch_cuda_direct({"cuda_direct", &problem, stream}, plan, buffers);
    case EngineId::kCudaLines:
      return launch_cuda_lines({"cuda_lines", &problem, stream}, plan, buffers);
    case EngineId::kCudaPixels:
      return launch_cuda_pixels({"cuda_pixels", &problem, stream}, plan, buffers);
    case EngineId::kCudaMma:
      return launch_cuda_mma({"cuda_mma", &problem, stream}, plan, buffers);
    case EngineId::kCudaDepthwise:
      return launch_cuda_depthwise({"cuda_depthwise", &problem, stream}, plan, buffers);
    case EngineId::kCudaPointwise:
      return launch_cuda_pointwise({"cuda_pointwise", &problem, stream}, plan, buffers);
    case EngineId::kCudaGrouped:
      return launch_cuda_grouped({"cuda_grouped", &problem, stream}, plan, buffers);
    case EngineId::kCudaBoxes:
      return launch_cuda_boxes({"cuda_boxes", &problem, stream}, plan, buffers);
    case EngineId::kCudaBands:
      return launch_cuda_bands({"cuda_bands", &problem, stream}, plan, buffers);
    case EngineId::kCudaDiagonal:
      return launch_cuda_diagonal({"cuda_diagonal", &problem, stream}, plan, buffers);
    case EngineId::kCudaPhases:
      return launch_cuda_phases({"cuda_phases", &problem, stream}, plan, buffers, context);
    case EngineId::kCudaCol2im:
      return launch_cuda_col2im({"cuda_col2im", &problem, stream}, plan, buffers);
    case EngineId::kCudaWeightGrad:
      return launch_cuda_weight_grad({"cuda_weight_grad", &problem, stream}, plan, buffers);
    case EngineId::kCpuGemm:
    case EngineId::kCpuDirect:
      break;
  }
  throw_launch_error({"launch_cuda", &problem, stream}, "choosing an engine",
                     "the plan is not for a CUDA device");
}

}  // namespace convx
