// Products to which a bias is added before they are rounded: cuBLASLt's.
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
struct BiasedOperand {
  const void* data;
  bool transposed;
  int64_t pitch, step;
};

struct BiasedProduct {
  int64_t m, n, k, batch;
  BiasedOperand left, right, result;
  BiasedOperand rows;    // [m], added to every column; or null
  BiasedOperand matrix;  // m x n, added; or null
  void* workspace;
  int64_t workspace_bytes;
};

// The handle is cuBLAS'. CUBLAS_STATUS_NOT_SUPPORTED where there is no algorithm, with nothing
// done.
cublasStatus_t multiply_biased(cublasHandle_t handle, cudaStream_t stream, const BlasTypes& types,
                               const BiasedProduct& product);

}  // namespace convx
