#include "engines/cpu_gemm/cpu_gemm_plan.h"

#include "engines/cpu_driver/cost_model.h"
#include "engines/cpu_driver/gather_driver.h"
#include "engines/cpu_driver/weight_driver.h"

namespace convx {

std::string refuse_cpu_gemm(const ConvProblem&, const DeviceCaps&) { return {}; }

Plan plan_cpu_gemm(const ConvProblem& problem, const DeviceCaps& caps) {
  Plan plan = problem.pass == Pass::kWeightGrad ? plan_weight(problem, caps, EngineId::kCpuGemm)
                                                : plan_gather(problem, caps, EngineId::kCpuGemm);
  plan.predicted_us = predict_cpu_us(problem, plan, caps);
  return plan;
}

}  // namespace convx
