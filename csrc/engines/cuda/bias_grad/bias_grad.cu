// Plans and launches the bias gradient; the kernels are described in bias_grad_kernels.cuh.
#include <algorithm>
#include <numeric>

#include "cuda/launch.h"
#include "engines/cuda/bias_grad/bias_grad_kernels.cuh"
#include "engines/engines.h"

namespace convx {
namespace {

// A block reads this much in four iterations, so a second launch would cost more than it saves.
constexpr int64_t kOneBlockBytes = 64 << 10;
constexpr int64_t kMinSliceBytes = 32 << 10;
// Several times as many blocks as a GPU runs at a time, so that the last ones take a small fraction
// of the time.
constexpr int64_t kWantedBlocks = 8192;

enum class BiasGradLayout { kRuns, kColumns, kStrided };

// How y is read. Nothing here depends on its address.
struct BiasGradPlan {
  BiasGradLayout layout;
  int64_t run_length = 0;  // elements of a run, for kRuns
  int64_t block_rows = 0;  // blocks per slice
  int64_t entries = 0;     // sums per slice
  int64_t slices = 1;
  bool single_launch = true;

  int64_t workspace_bytes() const {
    return single_launch ? 0 : entries * slices * static_cast<int64_t>(sizeof(double));
  }
};

// Axes of one element may have any stride.
bool is_dense_channels_last(const ConvProblem& p) {
  const Strides& s = p.y_strides;
  return (p.K == 1 || s.c == 1) && (p.Q == 1 || s.w == p.K) && (p.P == 1 || s.h == p.Q * p.K) &&
         (p.N == 1 || s.n == p.P * p.Q * p.K);
}

// The elements of a channel that follow each other in memory; 0 if columns are apart.
int64_t find_run_length(const ConvProblem& p) {
  const Strides& s = p.y_strides;
  if (p.Q > 1 && s.w != 1) return 0;
  return p.P > 1 && s.h == p.Q ? p.P * p.Q : p.Q;
}

int64_t runs_per_image(const ConvProblem& problem, int64_t run_length) {
  return problem.P * problem.Q / run_length;
}

// The size of a lane group: the largest that leaves at most a quarter of the group's vectors
// unused.
int choose_lanes_log2(int64_t vectors) {
  for (int log2 = 8; log2 > 0; --log2) {
    const int64_t unit = int64_t{kBatch} << log2;
    const int64_t covered = (vectors + unit - 1) / unit * unit;
    if (3 * covered <= 4 * vectors) return log2;
  }
  return 0;
}

// The number of vectors that a run touches; an upper bound if runs may begin anywhere.
int64_t count_vectors(const ConvProblem& problem, int64_t run_length, bool runs_are_aligned) {
  const int64_t elements = 16 / size_of(problem.dtype);
  return (run_length + (runs_are_aligned ? 1 : 2) * (elements - 1)) / elements;
}

// Whether every run begins at a multiple of 16 bytes.
bool are_runs_aligned(const ConvProblem& problem, const void* y) {
  const Strides& s = problem.y_strides;
  const auto is_aligned = [&](int64_t stride) { return stride * size_of(problem.dtype) % 16 == 0; };
  return reinterpret_cast<uintptr_t>(y) % 16 == 0 && is_aligned(s.n) && is_aligned(s.c) &&
         is_aligned(s.h);
}

int64_t count_units_per_run(int64_t vectors) {
  const int64_t unit = int64_t{kBatch} << choose_lanes_log2(vectors);
  return (vectors + unit - 1) / unit;
}

int64_t choose_slices(int64_t block_bytes, int64_t block_rows) {
  if (block_bytes <= kOneBlockBytes) return 1;
  const int64_t wanted = std::max<int64_t>(kWantedBlocks / block_rows, 1);
  return std::min((block_bytes + kMinSliceBytes - 1) / kMinSliceBytes, wanted);
}

int64_t count_column_blocks(int64_t columns, int64_t elements) {
  return (columns / elements + kMaxColumnVectors - 1) / kMaxColumnVectors;
}

BiasGradPlan plan_bias_grad(const ConvProblem& problem) {
  const int64_t elements = 16 / size_of(problem.dtype);
  const int64_t pixels = problem.N * problem.P * problem.Q;
  const int64_t bytes = pixels * problem.K * size_of(problem.dtype);
  BiasGradPlan plan{BiasGradLayout::kStrided};
  plan.entries = problem.K;
  if (is_dense_channels_last(problem)) {
    plan.layout = BiasGradLayout::kColumns;
    plan.entries = std::lcm(problem.K, elements);
    plan.block_rows = count_column_blocks(plan.entries, elements);
  } else {
    const int64_t length = find_run_length(problem);
    const int64_t units = length == 0
                              ? 0
                              : problem.N * runs_per_image(problem, length) *
                                    count_units_per_run(count_vectors(problem, length, false));
    // Shorter runs are better read across channels, if these are neighbours.
    const bool long_enough = length >= elements || problem.y_strides.c != 1;
    plan.block_rows = problem.K;
    if (length > 0 && long_enough && units < (int64_t{1} << 30)) {
      plan.layout = BiasGradLayout::kRuns;
      plan.run_length = length;
    } else if (problem.y_strides.c == 1) {
      plan.block_rows = (problem.K + kStridedChannels - 1) / kStridedChannels;
    }
  }
  plan.slices = choose_slices(bytes / plan.block_rows, plan.block_rows);
  // A channel whose columns are in several blocks needs a second launch, too.
  const bool owns_channels = plan.entries == problem.K || plan.block_rows == 1;
  plan.single_launch = plan.slices == 1 && owns_channels;
  return plan;
}

RunSumParams make_run_params(const ConvProblem& problem, const BiasGradPlan& plan, const void* y,
                             const BiasGradTarget& target) {
  RunSumParams p{};
  p.y = y;
  p.n_stride = problem.y_strides.n;
  p.c_stride = problem.y_strides.c;
  p.h_stride = problem.y_strides.h;
  p.run_length = plan.run_length;
  const int64_t rows = runs_per_image(problem, plan.run_length);
  const int64_t vectors = count_vectors(problem, plan.run_length, are_runs_aligned(problem, y));
  const int64_t units_per_run = count_units_per_run(vectors);
  p.runs_per_image = FastDivmod(rows);
  p.units_per_run = FastDivmod(units_per_run);
  p.channels = static_cast<int>(problem.K);
  p.units = static_cast<int>(problem.N * rows * units_per_run);
  p.units_per_slice = static_cast<int>((p.units + plan.slices - 1) / plan.slices);
  p.lanes_log2 = choose_lanes_log2(vectors);
  p.target = target;
  return p;
}

ColumnSumParams make_column_params(const ConvProblem& problem, const BiasGradPlan& plan,
                                   const void* y, const BiasGradTarget& target) {
  const int64_t size = size_of(problem.dtype), elements = 16 / size;
  ColumnSumParams p{};
  p.y = y;
  p.elements = problem.N * problem.P * problem.Q * problem.K;
  p.channels = static_cast<int>(problem.K);
  p.columns = static_cast<int>(plan.entries);
  p.column_blocks = static_cast<int>(plan.block_rows);
  const int vectors = p.columns / static_cast<int>(elements);
  p.block_vectors = (vectors + p.column_blocks - 1) / p.column_blocks;
  p.slots = kBiasGradThreads / p.block_vectors;
  p.begin = static_cast<int>(static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % 16) / size);
  p.rows = (p.begin + p.elements + p.columns - 1) / p.columns;
  p.rows_per_slice = (p.rows + plan.slices - 1) / plan.slices;
  p.target = target;
  return p;
}

StridedSumParams make_strided_params(const ConvProblem& problem, const BiasGradPlan& plan,
                                     const void* y, const BiasGradTarget& target) {
  StridedSumParams p{};
  p.dtype = problem.dtype;
  p.y = y;
  p.n_stride = problem.y_strides.n;
  p.c_stride = problem.y_strides.c;
  p.h_stride = problem.y_strides.h;
  p.w_stride = problem.y_strides.w;
  p.pixels = problem.N * problem.P * problem.Q;
  p.pixels_per_slice = (p.pixels + plan.slices - 1) / plan.slices;
  p.channels = static_cast<int>(problem.K);
  p.block_channels = plan.block_rows == problem.K ? 1 : kStridedChannels;
  p.channel_blocks = static_cast<int>(plan.block_rows);
  p.P = static_cast<int>(problem.P);
  p.Q = static_cast<int>(problem.Q);
  p.target = target;
  return p;
}

template <typename T>
void launch_bias_grad(const LaunchSite& site, const BiasGradPlan& plan, const void* y,
                      void* grad_bias, void* workspace) {
  const ConvProblem& problem = *site.problem;
  const BiasGradTarget target{grad_bias,
                              plan.single_launch ? nullptr : static_cast<double*>(workspace),
                              static_cast<int>(plan.slices)};
  const unsigned blocks = static_cast<unsigned>(plan.block_rows * plan.slices);
  constexpr size_t kThreadBytes = kBiasGradThreads * sizeof(double);
  int begin = 0;
  switch (plan.layout) {
    case BiasGradLayout::kRuns:
      launch_early<sum_runs_kernel<T>>(site, blocks, kBiasGradThreads, kThreadBytes,
                                       make_run_params(problem, plan, y, target));
      break;
    case BiasGradLayout::kColumns: {
      const ColumnSumParams params = make_column_params(problem, plan, y, target);
      begin = params.begin;
      launch_early<sum_columns_kernel<T>>(site, blocks, kBiasGradThreads,
                                          kThreadBytes * kVectorElements<T>, params);
      break;
    }
    case BiasGradLayout::kStrided:
      launch_early<sum_strided_kernel<accumulate_t<T>>>(
          site, blocks, kBiasGradThreads, kThreadBytes,
          make_strided_params(problem, plan, y, target));
      break;
  }
  if (plan.single_launch) return;
  const SliceSumParams sums{problem.dtype, static_cast<int>(problem.K),
                            static_cast<int>(plan.entries), begin, target};
  launch_early<sum_slices_kernel>(site, static_cast<unsigned>(problem.K), kSliceSumThreads,
                                  kSliceSumThreads * sizeof(double), sums);
}

}  // namespace

int64_t cuda_bias_grad_workspace_bytes(const ConvProblem& problem) {
  return plan_bias_grad(problem).workspace_bytes();
}

void cuda_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias, void* workspace,
                    const CudaContext& context) {
  const LaunchSite site{"cuda_bias_grad", &problem, static_cast<cudaStream_t>(context.stream)};
  const BiasGradPlan plan = plan_bias_grad(problem);
  visit_device_type(problem.dtype, [&](auto type) {
    launch_bias_grad<decltype(type)>(site, plan, y, grad_bias, workspace);
  });
}

}  // namespace convx
