#include "engines/cpu_direct/cpu_direct_launch.h"

#include "engines/cpu_direct/channelwise.h"
#include "engines/cpu_driver/gather_driver.h"
#include "engines/cpu_driver/weight_driver.h"

namespace convx {

void launch_cpu_direct(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                       const TaskRunner& runner) {
  if (is_channelwise(problem)) {
    launch_channelwise(problem, plan, buffers, runner);
  } else if (problem.pass == Pass::kWeightGrad) {
    launch_weight(problem, plan, buffers, runner);
  } else {
    launch_gather(problem, plan, buffers, runner);
  }
}

}  // namespace convx
