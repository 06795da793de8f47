#include "engines/cpu_direct/cpu_direct_plan.h"

#include "engines/cpu_direct/channelwise.h"
#include "engines/cpu_driver/cost_model.h"
#include "engines/cpu_driver/gather_driver.h"
#include "engines/cpu_driver/weight_driver.h"

namespace convx {

std::string refuse_cpu_direct(const ConvProblem&, const DeviceCaps&) { return {}; }

Plan plan_cpu_direct(const ConvProblem& problem, const DeviceCaps& caps) {
  if (is_channelwise(problem)) return plan_channelwise(problem, caps);
  Plan plan = problem.pass == Pass::kWeightGrad ? plan_weight(problem, caps, EngineId::kCpuDirect)
                                                : plan_gather(problem, caps, EngineId::kCpuDirect);
  plan.predicted_us = predict_cpu_us(problem, plan, caps);
  return plan;
}

}  // namespace convx
