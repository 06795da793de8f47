#include "engines/cpu_direct/cpu_direct_plan.h"
#include "engines/cpu_gemm/cpu_gemm_plan.h"
#include "engines/engine_list.h"

namespace convx {

std::span<const Engine> cpu_engines() {
  static constexpr Engine kEngines[] = {
      {EngineId::kCpuGemm, "cpu_gemm", refuse_cpu_gemm, plan_cpu_gemm},
      {EngineId::kCpuDirect, "cpu_direct", refuse_cpu_direct, plan_cpu_direct},
  };
  return kEngines;
}

}  // namespace convx
