#include "engines/cuda_gemm/cuda_gemm_launch.h"

#include "cuda/device_query.h"
#include "engines/cuda_gemm/cuda_gemm_passes.h"

namespace convx {

void launch_cuda_gemm(const LaunchSite& site, const Plan& plan, const Buffers& buffers,
                      void* blas) {
  int device = 0;
  check_cuda(site, cudaGetDevice(&device), "reading the current device");
  const GemmLimits limits{plan.workspace_bytes, query_cuda_caps(device).sm_count};
  if (site.problem->pass == Pass::kWeightGrad) {
    launch_gemm_weight_grad(site, blas, buffers, limits);
  } else {
    launch_gemm_gather(site, blas, buffers, limits);
  }
}

}  // namespace convx
