// Batched GEMMs on PyTorch's cuBLAS handle, by cuBLAS or by cuBLASLt: with a bias that is added
// before the result is rounded, or with an algorithm that cuBLAS would not choose
// (gemm_in_place.cpp).
#pragma once

#include <cublas_v2.h>

#include <cstdint>

#include "cuda/check.h"

namespace convx {

struct BlasTypes {
  cudaDataType_t storage;
  cudaDataType_t accumulate;
  cublasComputeType_t compute;
};

// For every group and every output row of a chunk, column-major as in cuBLAS:
//
//     result (m x n) = left (m x k) * right (k x n)
struct GemmOperand {
  const void* data;
  bool transposed;  // true: memory holds the transpose of the operand
  int64_t pitch;    // leading dimension
  int64_t group_stride, row_stride;
};

struct BatchedGemm {
  int64_t m, n, k;
  GemmOperand left, right;
  void* result;
  int64_t pitch, group_stride, row_stride;
  int64_t groups, rows;
  bool accumulate;   // true: adds to the result instead of replacing it
  bool wide_result;  // true: the result is stored in the accumulation type
};

// Values that multiply_lt adds before a result is rounded, and its workspace.
struct LtExtras {
  GemmOperand rows;    // [m], added to every column; or null
  GemmOperand matrix;  // m x n, added; or null
  void* workspace;
  int64_t workspace_bytes;
  int rank;  // of the algorithm among those that are proposed, see kMostLtProposals
};

// Sets the handle's math mode to the problem's precision, and restores it at the end. It changes
// neither the handle's stream nor its workspace, which belong to PyTorch.
class BlasScope {
 public:
  BlasScope(const LaunchSite& site, void* handle);
  ~BlasScope();
  BlasScope(const BlasScope&) = delete;
  BlasScope& operator=(const BlasScope&) = delete;

  void multiply(const BatchedGemm& gemm) const;
  // Returns false if cuBLASLt has no algorithm. Some results may have been written by then.
  bool multiply_lt(const BatchedGemm& gemm, const LtExtras& extras) const;

 private:
  void check(cublasStatus_t status, const char* what) const;
  // Calls use(batch size, offset of an operand in elements, its step) for every batched GEMM.
  template <typename Use>
  void visit_batches(const BatchedGemm& gemm, const Use& use) const;

  const LaunchSite& site_;
  cublasHandle_t handle_;
  cublasMath_t previous_mode_ = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t previous_pointers_ = CUBLAS_POINTER_MODE_HOST;
  BlasTypes types_;
};

}  // namespace convx
