// Batched matrix products on PyTorch's cuBLAS handle.
#pragma once

#include <cublas_v2.h>

#include <cstdint>

#include "cuda/check.h"
#include "engines/cuda_gemm/lt_product.h"

namespace convx {

// result (m x n) = left (m x k) times right (k x n), column-major as cuBLAS has it, for every
// group and every output row of a chunk.
struct GemmOperand {
  const void* data;
  bool transposed;  // stored as the transpose of what the product wants
  int64_t pitch;    // leading dimension
  int64_t group_stride, row_stride;
};

struct BatchedGemm {
  int64_t m, n, k;
  GemmOperand left, right;
  void* result;
  int64_t pitch, group_stride, row_stride;
  int64_t groups, rows;
  bool accumulate;   // add to the result instead of replacing it
  bool wide_result;  // the result is stored in the accumulation type
};

// What multiply_lt adds before a result is rounded, and memory for it.
struct LtExtras {
  GemmOperand rows;    // [m], to every column; or null
  GemmOperand matrix;  // m x n; or null
  void* workspace;
  int64_t workspace_bytes;
  int rank;  // LtProduct's
};

// Sets the handle's math mode to what the problem's precision asks for and restores it. Touches
// neither the handle's stream nor its workspace: both are PyTorch's.
class BlasScope {
 public:
  BlasScope(const LaunchSite& site, void* handle);
  ~BlasScope();
  BlasScope(const BlasScope&) = delete;
  BlasScope& operator=(const BlasScope&) = delete;

  void multiply(const BatchedGemm& gemm) const;
  // False where cuBLASLt has no algorithm for it; some of the results may be there then.
  bool multiply_lt(const BatchedGemm& gemm, const LtExtras& extras) const;

 private:
  void check(cublasStatus_t status, const char* what) const;
  // Calls use(batch, elements to go on by in an operand, its step) for every batch of products.
  template <typename Use>
  void visit_batches(const BatchedGemm& gemm, const Use& use) const;

  const LaunchSite& site_;
  cublasHandle_t handle_;
  cublasMath_t previous_mode_ = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t previous_pointers_ = CUBLAS_POINTER_MODE_HOST;
  BlasTypes types_;
};

}  // namespace convx
