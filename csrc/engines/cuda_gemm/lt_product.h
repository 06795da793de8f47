// Products of cuBLASLt: with a bias that is added before they are rounded, or with an algorithm
// that cuBLAS does not choose (gemm_in_place.cpp).
#pragma once

#include <cublas_v2.h>

#include <cstdint>

namespace convx {

struct BlasTypes {
  cudaDataType_t storage;
  cudaDataType_t accumulate;
  cublasComputeType_t compute;
};

// A batch of products, column-major. Operands of the next product begin `step` elements on.
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
  int rank;  // of the algorithm among those that are proposed: lt_proposals.h
};

// The handle is cuBLAS'. CUBLAS_STATUS_NOT_SUPPORTED where there is no algorithm, with nothing
// done.
cublasStatus_t multiply_lt(cublasHandle_t handle, cudaStream_t stream, const BlasTypes& types,
                           const LtProduct& product);

}  // namespace convx
