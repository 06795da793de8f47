#include "engines/cpu_gemm/cpu_gemm_launch.h"

#include "engines/cpu_driver/gather_driver.h"
#include "engines/cpu_driver/weight_driver.h"

namespace convx {

void launch_cpu_gemm(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                     const TaskRunner& runner) {
  if (problem.pass == Pass::kWeightGrad) {
    launch_weight(problem, plan, buffers, runner);
  } else {
    launch_gather(problem, plan, buffers, runner);
  }
}

}  // namespace convx
