#include "engines/engines.h"

#include "engines/cpu/driver/drivers.h"
#include "engines/cpu/kernels/cpu_kernels.h"

namespace convx {

void launch_cpu(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                const TaskRunner& runner) {
  if (plan.engine == EngineId::kCpuDirect && is_channelwise(problem)) {
    launch_channelwise(problem, plan, buffers, runner);
  } else if (problem.pass == Pass::kWeightGrad) {
    launch_weight(flatten_pointwise(problem), plan, buffers, runner);
  } else {
    launch_gather(flatten_pointwise(problem), plan, buffers, runner);
  }
}

int cpu_simd_bytes() { return cpu_kernel_table().simd_bytes; }

}  // namespace convx
