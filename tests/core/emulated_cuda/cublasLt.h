// In place of cuBLASLt: products with a bias by the emulated cuBLAS, once it has been told all that
// the launch side tells it. Has no bias for float64, as on a GPU.
#pragma once

#include <cstring>
#include <vector>

#include "cublas_v2.h"

enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE,
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
};
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 };
enum cublasLtReductionScheme_t {
  CUBLASLT_REDUCTION_SCHEME_NONE = 0,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
};

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t left, right;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  cudaDataType_t bias_type;
  int64_t bias_step;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t pitch;
  int32_t batch;
  int64_t step;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes;
  uint32_t schemes;
  uint32_t alignment[4];
};
struct cublasLtMatmulAlgo_t {
  bool splits;  // the reduction
  uint64_t workspace_bytes;
  uint32_t alignment[4];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  float wavesCount;
};
using cublasLtHandle_t = struct cublasLtContext*;

inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDescOpaque_t* desc,
                                             cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, scale, 0};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayoutOpaque_t* layout,
                                               cudaDataType_t type, uint64_t rows,
                                               uint64_t columns, int64_t pitch) {
  *layout = {type, rows, columns, pitch, 1, 0};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreferenceOpaque_t* wish) {
  *wish = {};
  return CUBLAS_STATUS_SUCCESS;
}

namespace emulator {

// Refuses values of another size than the attribute's, as cuBLASLt does.
template <typename Value>
cublasStatus_t take_attribute(Value& to, const void* value, size_t bytes) {
  if (bytes != sizeof(to)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace emulator

inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDescOpaque_t* desc,
                                                     cublasLtMatmulDescAttributes_t name,
                                                     const void* value, size_t bytes) {
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return emulator::take_attribute(desc->left, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return emulator::take_attribute(desc->right, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return emulator::take_attribute(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return emulator::take_attribute(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return emulator::take_attribute(desc->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return emulator::take_attribute(desc->bias_step, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayoutOpaque_t* layout,
                                                       cublasLtMatrixLayoutAttribute_t name,
                                                       const void* value, size_t bytes) {
  if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    return emulator::take_attribute(layout->batch, value, bytes);
  }
  return emulator::take_attribute(layout->step, value, bytes);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreferenceOpaque_t* wish, cublasLtMatmulPreferenceAttributes_t name,
    const void* value, size_t bytes) {
  switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return emulator::take_attribute(wish->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return emulator::take_attribute(wish->schemes, value, bytes);
    default:
      return emulator::take_attribute(
          wish->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, const cublasLtMatmulDescOpaque_t* desc, const cublasLtMatrixLayoutOpaque_t*,
    const cublasLtMatrixLayoutOpaque_t*, const cublasLtMatrixLayoutOpaque_t*,
    const cublasLtMatrixLayoutOpaque_t*, const cublasLtMatmulPreferenceOpaque_t* wish, int,
    cublasLtMatmulHeuristicResult_t* found, int* count) {
  *count = 0;
  if (desc->epilogue == CUBLASLT_EPILOGUE_BIAS && desc->scale == CUDA_R_64F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *count = 1;
  found->algo.splits = wish->schemes != CUBLASLT_REDUCTION_SCHEME_NONE;
  found->algo.workspace_bytes = wish->workspace_bytes;
  std::memcpy(found->algo.alignment, wish->alignment, sizeof(wish->alignment));
  return CUBLAS_STATUS_SUCCESS;
}

// Once more through the emulated cuBLAS, on results that hold what is added, in float64. Where the
// reduction is split, the epilogue adds to sums that are rounded already, as on a GPU.
inline cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, const cublasLtMatmulDescOpaque_t* desc, const void* alpha, const void* a,
    const cublasLtMatrixLayoutOpaque_t* left, const void* b,
    const cublasLtMatrixLayoutOpaque_t* right, const void* beta, const void* c,
    const cublasLtMatrixLayoutOpaque_t* added, void* d, const cublasLtMatrixLayoutOpaque_t* result,
    const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t) {
  const void* const pointers[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(pointers[i]) % algorithm->alignment[i] != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  if (workspace_bytes < algorithm->workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memset(workspace, 0, workspace_bytes);
  const bool wide = desc->scale == CUDA_R_64F;
  const double factor =
      wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  const auto m = static_cast<int64_t>(result->rows), n = static_cast<int64_t>(result->columns);
  const auto k = static_cast<int64_t>(desc->left == CUBLAS_OP_N ? left->columns : left->rows);
  const cudaDataType_t sums = wide ? CUDA_R_64F : CUDA_R_32F;
  std::vector<char> staged(static_cast<size_t>(m * n * emulator::size_of_type(sums)));
  const double one64 = 1;
  const float one32 = 1;
  if (alpha == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const void* one = wide ? static_cast<const void*>(&one64) : &one32;
  const auto at = [](const void* data, cudaDataType_t type, int64_t elements) {
    return static_cast<const char*>(data) + elements * emulator::size_of_type(type);
  };
  const auto bias_of = [&](int64_t i, int64_t row) {
    if (desc->epilogue != CUBLASLT_EPILOGUE_BIAS) return 0.0;
    return emulator::load_scalar(desc->bias, desc->bias_type, i * desc->bias_step + row);
  };
  for (int64_t i = 0; i < result->batch; ++i) {
    for (int64_t column = 0; column < n; ++column) {
      for (int64_t row = 0; row < m; ++row) {
        double start = 0;
        if (factor != 0) {
          start = emulator::load_scalar(c, added->type,
                                        i * added->step + column * added->pitch + row);
        }
        if (!algorithm->splits) start += bias_of(i, row);
        emulator::store_scalar(staged.data(), sums, column * m + row, start);
      }
    }
    const cublasStatus_t status = cublasGemmStridedBatchedEx(
        nullptr, desc->left, desc->right, static_cast<int>(m), static_cast<int>(n),
        static_cast<int>(k), alpha, at(a, left->type, i * left->step), left->type,
        static_cast<int>(left->pitch), 0, at(b, right->type, i * right->step), right->type,
        static_cast<int>(right->pitch), 0, one, staged.data(), sums, static_cast<int>(m), 0, 1,
        desc->compute, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (int64_t column = 0; column < n; ++column) {
      for (int64_t row = 0; row < m; ++row) {
        const int64_t at_d = i * result->step + column * result->pitch + row;
        emulator::store_scalar(d, result->type, at_d,
                               emulator::load_scalar(staged.data(), sums, column * m + row));
        if (!algorithm->splits) continue;
        emulator::store_scalar(d, result->type, at_d,
                               emulator::load_scalar(d, result->type, at_d) + bias_of(i, row));
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
