#include "engines/launch_cpu.h"

#include "engines/cpu_direct/cpu_direct_launch.h"
#include "engines/cpu_gemm/cpu_gemm_launch.h"
#include "engines/cpu_kernels/cpu_kernels.h"

namespace convx {

void launch_cpu(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                const TaskRunner& runner) {
  switch (plan.engine) {
    case EngineId::kCpuGemm:
      return launch_cpu_gemm(problem, plan, buffers, runner);
    case EngineId::kCpuDirect:
      return launch_cpu_direct(problem, plan, buffers, runner);
    case EngineId::kCudaGemm:
    case EngineId::kCudaDirect:
    case EngineId::kCudaLines:
    case EngineId::kCudaPixels:
    case EngineId::kCudaMma:
    case EngineId::kCudaDepthwise:
    case EngineId::kCudaPointwise:
    case EngineId::kCudaGrouped:
    case EngineId::kCudaBoxes:
    case EngineId::kCudaBands:
    case EngineId::kCudaDiagonal:
    case EngineId::kCudaPhases:
    case EngineId::kCudaCol2im:
    case EngineId::kCudaWeightGrad:
      break;  // never in a plan for the CPU
  }
}

int cpu_simd_bytes() { return cpu_kernel_table().simd_bytes; }

}  // namespace convx
