#include "engines/cuda/gemm/blas_scope.h"

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
  types_.storage = storage_type(dtype);
  types_.accumulate = dtype == DType::kFloat64 ? CUDA_R_64F : CUDA_R_32F;
  types_.compute = dtype == DType::kFloat64 ? CUBLAS_COMPUTE_64F
                   : tf32                   ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
  check(cublasGetMathMode(handle_, &previous_mode_), "cublasGetMathMode");
  check(cublasGetPointerMode(handle_, &previous_pointers_), "cublasGetPointerMode");
  // cuBLAS may split the reduction; partial sums of 16-bit products must stay in float32 then.
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

template <typename Use>
void BlasScope::visit_batches(const BatchedGemm& g, const Use& use) const {
  // The longer axis becomes the batch, the other one a loop.
  const bool batch_rows = g.rows >= g.groups;
  const int64_t loops = batch_rows ? g.groups : g.rows;
  const int64_t batch = batch_rows ? g.rows : g.groups;
  const auto step_of = [&](const auto& operand) {
    return batch_rows ? operand.row_stride : operand.group_stride;
  };
  constexpr int64_t kMaxBatch = 65535;  // limit of a grid dimension
  for (int64_t loop = 0; loop < loops; ++loop) {
    for (int64_t first = 0; first < batch; first += kMaxBatch) {
      const auto offset_of = [&](const auto& operand) {
        const int64_t outer = batch_rows ? operand.group_stride : operand.row_stride;
        return loop * outer + first * step_of(operand);
      };
      use(std::min(kMaxBatch, batch - first), offset_of, step_of);
    }
  }
}

void BlasScope::multiply(const BatchedGemm& g) const {
  const int64_t size = size_of(site_.problem->dtype);
  const cudaDataType_t result_type = g.wide_result ? types_.accumulate : types_.storage;
  const int64_t result_size = result_type == CUDA_R_64F ? 8 : result_type == CUDA_R_32F ? 4 : 2;
  const double one64 = 1, beta64 = g.accumulate ? 1 : 0;
  const float one32 = 1, beta32 = g.accumulate ? 1 : 0;
  const bool is64 = types_.compute == CUBLAS_COMPUTE_64F;
  const void* one = is64 ? static_cast<const void*>(&one64) : &one32;
  const void* beta = is64 ? static_cast<const void*>(&beta64) : &beta32;
  visit_batches(g, [&](int64_t batch, const auto& offset_of, const auto& step_of) {
    check(cublasGemmStridedBatchedEx(
              handle_, g.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
              g.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, static_cast<int>(g.m),
              static_cast<int>(g.n), static_cast<int>(g.k), one,
              advance(g.left.data, offset_of(g.left), size), types_.storage,
              static_cast<int>(g.left.pitch), step_of(g.left),
              advance(g.right.data, offset_of(g.right), size), types_.storage,
              static_cast<int>(g.right.pitch), step_of(g.right), beta,
              const_cast<char*>(advance(g.result, offset_of(g), result_size)), result_type,
              static_cast<int>(g.pitch), step_of(g), static_cast<int>(batch), types_.compute,
              CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
  });
}

bool BlasScope::multiply_lt(const BatchedGemm& g, const LtExtras& extras) const {
  const int64_t size = size_of(site_.problem->dtype);
  bool supported = true;
  visit_batches(g, [&](int64_t batch, const auto& offset_of, const auto& step_of) {
    if (!supported) return;
    const auto operand = [&](const GemmOperand& o) -> LtOperand {
      if (o.data == nullptr) return {};
      return {advance(o.data, offset_of(o), size), o.transposed, o.pitch, step_of(o)};
    };
    const LtProduct product{
        .m = g.m,
        .n = g.n,
        .k = g.k,
        .batch = batch,
        .left = operand(g.left),
        .right = operand(g.right),
        .result = operand({g.result, false, g.pitch, g.group_stride, g.row_stride}),
        .rows = operand(extras.rows),
        .matrix = operand(extras.matrix),
        .workspace = extras.workspace,
        .workspace_bytes = extras.workspace_bytes,
        .rank = extras.rank,
    };
    const cublasStatus_t status = convx::multiply_lt(handle_, site_.stream, types_, product);
    supported = status != CUBLAS_STATUS_NOT_SUPPORTED;
    if (supported) check(status, "cublasLtMatmul");
  });
  return supported;
}

}  // namespace convx
