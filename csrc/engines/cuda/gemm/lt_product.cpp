#include "engines/cuda/gemm/lt_product.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "engines/cuda/gemm/lt_proposals.h"

namespace convx {
namespace {

// cuBLASLt's descriptors of a product.
class Description {
 public:
  Description(const BlasTypes& types, const LtProduct& p)
      : sums_as_stored(types.storage == types.accumulate) {
    take(cublasLtMatmulDescInit(&multiply, types.compute, types.accumulate));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.rows.data != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.rows.data);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, types.storage);
      if (p.batch > 1) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.rows.step);
    }
    lay_out(left, types.storage, p.m, p.k, p.left, p.batch);
    lay_out(right, types.storage, p.k, p.n, p.right, p.batch);
    lay_out(result, types.storage, p.m, p.n, p.result, p.batch);
    lay_out(added, types.storage, p.m, p.n, p.matrix.data ? p.matrix : p.result, p.batch);
  }

  std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t handle, const LtProduct& p) {
    cublasLtMatmulPreferenceOpaque_t wish;
    take(cublasLtMatmulPreferenceInit(&wish));
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      take(cublasLtMatmulPreferenceSetAttribute(&wish, name, &value, sizeof(value)));
    };
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(p.workspace_bytes));
    // Partial sums of 16-bit products stay in float32 even if cuBLASLt splits the reduction. The
    // epilogue runs after the partial sums have been added and rounded, so split-K is disallowed
    // with a bias.
    if (!sums_as_stored) {
      want(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(p.rows.data != nullptr ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                        : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    }
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.left.data));
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.right.data));
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(added_data(p)));
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         std::min(alignment_of(p.result.data), alignment_of(p.rows.data)));
    std::array<cublasLtMatmulHeuristicResult_t, kMostLtProposals> found{};
    const int wanted = p.rank == kFewTiles ? kMostLtProposals : p.rank + 1;
    int count = 0;
    take(cublasLtMatmulAlgoGetHeuristic(handle, &multiply, &left, &right, &added, &result, &wish,
                                        wanted, found.data(), &count));
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) return std::nullopt;
    size_t best = static_cast<size_t>(count) - 1;
    if (p.rank == kFewTiles) {
      std::vector<float> waves;
      for (int i = 0; i < count; ++i) waves.push_back(found[static_cast<size_t>(i)].wavesCount);
      best = choose_few_tiles(waves, p.batch);
    }
    return found[best].algo;
  }

  static const void* added_data(const LtProduct& p) {
    return p.matrix.data ? p.matrix.data : p.result.data;
  }

  // The largest power of two that divides the address, at most 256. A null pointer gives 256.
  static uint32_t alignment_of(const void* address) {
    constexpr uintptr_t kMost = 256;
    const auto bits = reinterpret_cast<uintptr_t>(address) | kMost;
    return static_cast<uint32_t>(bits & -bits);
  }

  cublasLtMatmulDescOpaque_t multiply;
  cublasLtMatrixLayoutOpaque_t left, right, added, result;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // the first error
  const bool sums_as_stored;

 private:
  void take(cublasStatus_t got) {
    if (status == CUBLAS_STATUS_SUCCESS) status = got;
  }

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t name, const Value& value) {
    take(cublasLtMatmulDescSetAttribute(&multiply, name, &value, sizeof(value)));
  }

  void lay_out(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows,
               int64_t columns, const LtOperand& operand, int64_t batch) {
    if (operand.transposed) std::swap(rows, columns);
    take(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(columns), operand.pitch));
    if (batch == 1) return;
    const auto count = static_cast<int32_t>(batch);
    const int64_t step = operand.step;
    take(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof(count)));
    take(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &step, sizeof(step)));
  }
};

// Cache of chosen algorithms, because choosing takes longer than the rest of a call. The key
// includes the handle, which belongs to one device.
class Chosen {
  using Key = std::array<int64_t, 21>;
  static constexpr size_t kMost = 4096;

 public:
  std::optional<cublasLtMatmulAlgo_t> find_or_choose(cublasHandle_t handle, const BlasTypes& types,
                                                     const LtProduct& p, Description& d) {
    const auto alignments = [&](auto... data) {
      int64_t bits = 0;
      ((bits = bits << 16 | Description::alignment_of(data)), ...);
      return bits;
    };
    const Key key{static_cast<int64_t>(reinterpret_cast<uintptr_t>(handle)),
                  types.storage,
                  types.compute,
                  p.m,
                  p.n,
                  p.k,
                  p.batch,
                  p.left.transposed + 2 * p.right.transposed + 4 * (p.rows.data != nullptr) +
                      8 * (p.matrix.data != nullptr),
                  p.left.pitch,
                  p.left.step,
                  p.right.pitch,
                  p.right.step,
                  p.result.pitch,
                  p.result.step,
                  p.rows.step,
                  p.matrix.pitch,
                  p.matrix.step,
                  p.workspace_bytes,
                  p.rank,
                  alignments(p.left.data, p.right.data),
                  alignments(p.result.data, p.rows.data, p.matrix.data)};
    const std::lock_guard lock(mutex_);
    const auto at = algorithms_.find(key);
    if (at != algorithms_.end()) return at->second;
    if (algorithms_.size() >= kMost) algorithms_.clear();
    const auto algorithm = d.choose(reinterpret_cast<cublasLtHandle_t>(handle), p);
    algorithms_.emplace(key, algorithm);
    return algorithm;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

}  // namespace

cublasStatus_t multiply_lt(cublasHandle_t handle, cudaStream_t stream, const BlasTypes& types,
                           const LtProduct& p) {
  static Chosen chosen;
  Description d(types, p);
  if (d.status != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto algorithm = chosen.find_or_choose(handle, types, p, d);
  if (!algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool wide = types.accumulate == CUDA_R_64F;
  const double one64 = 1, beta64 = p.matrix.data ? 1 : 0;
  const float one32 = 1, beta32 = p.matrix.data ? 1 : 0;
  // A cuBLAS handle is a valid cuBLASLt handle.
  return cublasLtMatmul(reinterpret_cast<cublasLtHandle_t>(handle), &d.multiply,
                        wide ? static_cast<const void*>(&one64) : &one32, p.left.data, &d.left,
                        p.right.data, &d.right, wide ? static_cast<const void*>(&beta64) : &beta32,
                        Description::added_data(p), &d.added, const_cast<void*>(p.result.data),
                        &d.result, &*algorithm, p.workspace, static_cast<size_t>(p.workspace_bytes),
                        stream);
}

}  // namespace convx
