// In place of cuBLAS: its product, one multiplication at a time, and nothing of its handle. Refuses
// what cuBLAS refuses.
#pragma once

#include <cstdint>

#include "emulator.h"

enum cudaDataType_t { CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF };
enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS,
  CUBLAS_STATUS_INVALID_VALUE,
  CUBLAS_STATUS_NOT_SUPPORTED,
};
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16,
};
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };
using cublasHandle_t = void*;
using cudaStream_t = void*;

inline cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t*) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasGetPointerMode(cublasHandle_t, cublasPointerMode_t*) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline const char* cublasGetStatusString(cublasStatus_t) { return "invalid value"; }

namespace emulator {

inline double load_scalar(const void* data, cudaDataType_t type, int64_t index) {
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[index];
    case CUDA_R_64F:
      return static_cast<const double*>(data)[index];
    case CUDA_R_16F:
      return static_cast<float>(static_cast<const __half*>(data)[index]);
    case CUDA_R_16BF:
      return static_cast<float>(static_cast<const __nv_bfloat16*>(data)[index]);
  }
  return 0;
}

inline void store_scalar(void* data, cudaDataType_t type, int64_t index, double value) {
  switch (type) {
    case CUDA_R_32F:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case CUDA_R_64F:
      static_cast<double*>(data)[index] = value;
      return;
    case CUDA_R_16F:
      static_cast<__half*>(data)[index] = __float2half_rn(static_cast<float>(value));
      return;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(static_cast<float>(value));
      return;
  }
}

inline int64_t size_of_type(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

// A column-major matrix, or one that is stored as its transpose.
struct Matrix {
  const void* data;
  cudaDataType_t type;
  bool transposed;
  int pitch;

  double at(int64_t row, int64_t column) const {
    return load_scalar(data, type, transposed ? row * pitch + column : column * pitch + row);
  }
};

}  // namespace emulator

// Sums are float32 unless values are float64, term after term.
inline cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
    const void* alpha, const void* a, cudaDataType_t a_type, int a_pitch, int64_t a_stride,
    const void* b, cudaDataType_t b_type, int b_pitch, int64_t b_stride, const void* beta, void* c,
    cudaDataType_t c_type, int c_pitch, int64_t c_stride, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t) {
  const bool wide = compute == CUBLAS_COMPUTE_64F;
  const auto read = [&](const void* scalar) {
    return wide ? *static_cast<const double*>(scalar) : *static_cast<const float*>(scalar);
  };
  const bool sizes = m >= 0 && n >= 0 && k >= 0 && batch >= 0;
  const bool pitches = a_pitch >= max(1, op_a == CUBLAS_OP_N ? m : k) &&
                       b_pitch >= max(1, op_b == CUBLAS_OP_N ? k : n) && c_pitch >= max(1, m);
  if (!sizes || !pitches || read(alpha) != 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto advance = [](const void* data, cudaDataType_t type, int64_t elements) {
    return static_cast<const char*>(data) + elements * emulator::size_of_type(type);
  };
  for (int64_t i = 0; i < batch; ++i) {
    const emulator::Matrix left{advance(a, a_type, i * a_stride), a_type, op_a == CUBLAS_OP_T,
                                a_pitch};
    const emulator::Matrix right{advance(b, b_type, i * b_stride), b_type, op_b == CUBLAS_OP_T,
                                 b_pitch};
    void* const result = const_cast<char*>(advance(c, c_type, i * c_stride));
    for (int64_t column = 0; column < n; ++column) {
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) {
          sum += left.at(row, j) * right.at(j, column);
          if (!wide) sum = static_cast<float>(sum);
        }
        const int64_t to = column * c_pitch + row;
        if (read(beta) != 0) sum += emulator::load_scalar(result, c_type, to);
        emulator::store_scalar(result, c_type, to, sum);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
