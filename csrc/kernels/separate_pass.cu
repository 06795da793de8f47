// y[i] = activation(y[i] + residual[i]) over dense tensors, at the speed of memory.
//
// A thread handles 16 bytes at a time in a grid-stride loop. Elements behind the last whole 16
// bytes, and all of them if a tensor is not aligned to 16 bytes, are handled one by one. No shared
// memory.
#include "kernels/separate_pass.h"

#include "core/gather_view.h"
#include "cuda/launch.h"
#include "kernels/epilogue.cuh"

namespace convx {
namespace {

constexpr int kPassThreads = 256;

struct PassParams {
  void* y;
  FusionParams fusion;
  int64_t units;  // of 16 bytes
  int64_t elements;
};

}  // namespace

template <typename T>
__global__ void __launch_bounds__(kPassThreads)
    separate_pass_kernel(const __grid_constant__ PassParams p) {
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));
  struct alignas(16) Unit {
    T of[kValues];
  };
  T* const y = static_cast<T*>(p.y);
  const T* const residual = static_cast<const T*>(p.fusion.residual);
  const FusionParams activation{nullptr, p.fusion.activation, p.fusion.slope};
  const int64_t first = blockIdx.x * int64_t{kPassThreads} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{kPassThreads};
  for (int64_t u = first; u < p.units; u += step) {
    Unit unit = reinterpret_cast<const Unit*>(y)[u];
    accumulate_t<T> values[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = to_accumulate(unit.of[i]);
    if (residual != nullptr) {
      const Unit more = reinterpret_cast<const Unit*>(residual)[u];
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] += to_accumulate(more.of[i]);
    }
    finish_values<T>(activation, nullptr, 0, 0, values);
#pragma unroll
    for (int i = 0; i < kValues; ++i) unit.of[i] = round_to<T>(values[i]);
    reinterpret_cast<Unit*>(y)[u] = unit;
  }
  for (int64_t i = p.units * kValues + first; i < p.elements; i += step) {
    y[i] = round_to<T>(finish_value(p.fusion, y, y + i, to_accumulate(y[i])));
  }
}

void apply_epilogue(const LaunchSite& site, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  PassParams params{};
  params.y = buffers.y;
  params.fusion = make_fusion_params(problem, buffers);
  params.elements = problem.N * problem.K * problem.P * problem.Q;
  const auto is_aligned = [](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
  };
  const int64_t values = 16 / size_of(problem.dtype);
  const bool aligned = is_aligned(params.y) && is_aligned(params.fusion.residual);
  params.units = aligned ? params.elements / values : 0;
  const int64_t items = aligned ? params.units + values : params.elements;
  const Grid grid(count_loop_blocks(items, kPassThreads));
  visit_device_type(problem.dtype, [&]<typename T>(T) {
    launch_kernel<separate_pass_kernel<T>>(site, grid, kPassThreads, 0, params);
  });
}

}  // namespace convx
