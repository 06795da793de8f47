// GEMMs by cuBLASLt: with a bias that is added before the result is rounded, or with an algorithm
// that cuBLAS would not choose (gemm_in_place.cpp).
#pragma once

#include <cublas_v2.h>

#include <cstdint>

namespace convx {

struct BlasTypes {
  cudaDataType_t storage;
  cudaDataType_t accumulate;
  cublasComputeType_t compute;
};

// An operand of a batch of GEMMs, column-major. `step`: elements from one GEMM to the next.
struct LtOperand {
  const void* data;
  bool transposed;
  int64_t pitch, step;
};

struct LtProduct {
  int64_t m, n, k, batch;
  LtOperand left, right, result;
  LtOperand rows;    // [m], added to every column; or null
  LtOperand matrix;  // m x n, added; or null
  void* workspace;
  int64_t workspace_bytes;
  int rank;  // index among the proposed algorithms, see lt_proposals.h
};

// handle: a cuBLAS handle. Returns CUBLAS_STATUS_NOT_SUPPORTED, having done nothing, if there is no
// algorithm.
cublasStatus_t multiply_lt(cublasHandle_t handle, cudaStream_t stream, const BlasTypes& types,
                           const LtProduct& product);

}  // namespace convx
