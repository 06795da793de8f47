#include "cuda/check.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/gemm/gemm_shape.h"

namespace convx {

void launch_cuda_gemm(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  void* const blas = site.get_blas();
  const GemmShape& shape = geometry_of<GemmShape>(plan);
  if (site.problem->pass == Pass::kWeightGrad) {
    launch_gemm_weight_grad(site, blas, shape, buffers);
  } else if (shape.in_place.form != InPlaceForm::kNone) {
    launch_gemm_in_place(site, blas, shape, buffers);
  } else {
    launch_gemm_gather(site, blas, shape, buffers);
  }
}

}  // namespace convx
