#include "engines/cuda/gemm/blas_scope.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "engines/cuda/gemm/gemm_in_place.h"

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
  int rank;  // of the algorithm, as in LtExtras
};

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

// handle: a cuBLAS handle. Returns CUBLAS_STATUS_NOT_SUPPORTED, having done nothing, if there is no
// algorithm.
cublasStatus_t run_lt(cublasHandle_t handle, cudaStream_t stream, const BlasTypes& types,
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
    const cublasStatus_t status = run_lt(handle_, site_.stream, types_, product);
    supported = status != CUBLAS_STATUS_NOT_SUPPORTED;
    if (supported) check(status, "cublasLtMatmul");
  });
  return supported;
}

}  // namespace convx
