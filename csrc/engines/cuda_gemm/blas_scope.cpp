#include "engines/cuda_gemm/blas_scope.h"

#include <algorithm>

namespace convx {
namespace {

cudaDataType_t storage_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kFloat64:
      return CUDA_R_64F;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
  }
  return CUDA_R_32F;
}

const char* advance(const void* data, int64_t elements, int64_t size) {
  return static_cast<const char*>(data) + elements * size;
}

}  // namespace

BlasScope::BlasScope(const LaunchSite& site, void* handle)
    : site_(site), handle_(static_cast<cublasHandle_t>(handle)) {
  const DType dtype = site.problem->dtype;
  const bool tf32 = dtype == DType::kFloat32 && site.problem->precision == Precision::kTf32;
  storage_ = storage_type(dtype);
  accumulate_ = dtype == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F;
  compute_ = dtype == DType::kFloat64 ? CUBLAS_COMPUTE_64F
             : tf32                   ? CUBLAS_COMPUTE_32F_FAST_TF32
                                      : CUBLAS_COMPUTE_32F;
  check(cublasGetMathMode(handle_, &previous_mode_), "cublasGetMathMode");
  check(cublasGetPointerMode(handle_, &previous_pointers_), "cublasGetPointerMode");
  // Sums of 16-bit products stay in float32 even where cuBLAS splits the reduction.
  const int mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check(cublasSetMathMode(handle_, static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
  check(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_HOST), "cublasSetPointerMode");
}

BlasScope::~BlasScope() {
  cublasSetMathMode(handle_, previous_mode_);
  cublasSetPointerMode(handle_, previous_pointers_);
}

void BlasScope::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw_launch_error(site_, what, cublasGetStatusString(status));
  }
}

void BlasScope::multiply(const BatchedGemm& g) const {
  const int64_t size = size_of(site_.problem->dtype);
  const cudaDataType_t result_type = g.wide_result ? accumulate_ : storage_;
  const int64_t result_size = result_type == CUDA_R_64F ? 8 : result_type == CUDA_R_32F ? 4 : 2;
  const double one64 = 1, beta64 = g.accumulate ? 1 : 0;
  const float one32 = 1, beta32 = g.accumulate ? 1 : 0;
  const bool is64 = compute_ == CUBLAS_COMPUTE_64F;
  const void* one = is64 ? static_cast<const void*>(&one64) : &one32;
  const void* beta = is64 ? static_cast<const void*>(&beta64) : &beta32;

  // The longer of the two axes is the batch, the other a loop.
  const bool batch_rows = g.rows >= g.groups;
  const int64_t loops = batch_rows ? g.groups : g.rows;
  const int64_t batch = batch_rows ? g.rows : g.groups;
  auto step_of = [](bool rows, const auto& operand) {
    return rows ? operand.row_stride : operand.group_stride;
  };
  constexpr int64_t kMaxBatch = 65535;  // a grid dimension
  for (int64_t loop = 0; loop < loops; ++loop) {
    for (int64_t first = 0; first < batch; first += kMaxBatch) {
      auto offset_of = [&](const auto& operand) {
        return loop * step_of(!batch_rows, operand) + first * step_of(batch_rows, operand);
      };
      check(
          cublasGemmStridedBatchedEx(
              handle_, g.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
              g.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(g.m),
              static_cast<int>(g.n), static_cast<int>(g.k), one,
              advance(g.left.data, offset_of(g.left), size), storage_,
              static_cast<int>(g.left.pitch), step_of(batch_rows, g.left),
              advance(g.right.data, offset_of(g.right), size), storage_,
              static_cast<int>(g.right.pitch), step_of(batch_rows, g.right), beta,
              const_cast<char*>(advance(g.result, offset_of(g), result_size)), result_type,
              static_cast<int>(g.pitch), step_of(batch_rows, g),
              static_cast<int>(std::min(kMaxBatch, batch - first)), compute_, CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
    }
  }
}

}  // namespace convx
