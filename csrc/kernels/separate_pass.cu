// y[i] = activation(y[i] + residual[i]) over dense tensors, at the speed of memory.
//
// A thread handles 16 bytes at a time in a grid-stride loop, from the end of the tensors to their
// beginning: what the convolution has stored last is still in L2. Elements behind the last whole 16
// bytes, and all of them if a tensor is not aligned to 16 bytes, are handled one by one. No shared
// memory.
#include "kernels/separate_pass.h"

#include <cmath>
#include <cstdint>

#include "core/epilogue.h"
#include "cuda/launch.h"
#include "device/convert.cuh"

namespace convx {
namespace {

constexpr int kPassThreads = 256;

struct PassParams {
  void* y;
  const void* residual;  // may be null
  Activation activation;
  double slope;
  int64_t units;  // of 16 bytes
  int64_t elements;
};

#include "core/activations.inl"

template <typename Acc, int kCount>
__device__ __forceinline__ void activate_all(const PassParams& p, Acc (&values)[kCount]) {
  const Acc slope = static_cast<Acc>(p.slope);
  visit_activation(p.activation, [&]<Activation kActivation>() {
#pragma unroll
    for (Acc& value : values) value = activate<kActivation, LibraryMath>(value, slope);
  });
}

}  // namespace

template <typename T>
__global__ void __launch_bounds__(kPassThreads)
    separate_pass_kernel(const __grid_constant__ PassParams p) {
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));
  struct alignas(16) Unit {
    T of[kValues];
  };
  T* const y = static_cast<T*>(p.y);
  const T* const residual = static_cast<const T*>(p.residual);
  const int64_t first = blockIdx.x * int64_t{kPassThreads} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{kPassThreads};
  for (int64_t u = p.units - 1 - first; u >= 0; u -= step) {
    Unit unit = reinterpret_cast<const Unit*>(y)[u];
    accumulate_t<T> values[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = to_accumulate(unit.of[i]);
    if (residual != nullptr) {
      const Unit more = reinterpret_cast<const Unit*>(residual)[u];
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] += to_accumulate(more.of[i]);
    }
    activate_all(p, values);
#pragma unroll
    for (int i = 0; i < kValues; ++i) unit.of[i] = round_to<T>(values[i]);
    reinterpret_cast<Unit*>(y)[u] = unit;
  }
  for (int64_t i = p.units * kValues + first; i < p.elements; i += step) {
    accumulate_t<T> value[1] = {to_accumulate(y[i])};
    if (residual != nullptr) value[0] += to_accumulate(residual[i]);
    activate_all(p, value);
    y[i] = round_to<T>(value[0]);
  }
}

void apply_epilogue(const LaunchSite& site, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  PassParams params{};
  params.y = buffers.y;
  params.residual = problem.epilogue.has_residual ? buffers.residual : nullptr;
  params.activation = problem.epilogue.activation;
  params.slope = problem.epilogue.slope;
  params.elements = problem.N * problem.K * problem.P * problem.Q;
  const auto is_aligned = [](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
  };
  const int64_t values = 16 / size_of(problem.dtype);
  const bool aligned = is_aligned(params.y) && is_aligned(params.residual);
  params.units = aligned ? params.elements / values : 0;
  const int64_t items = aligned ? params.units + values : params.elements;
  const Grid grid(count_loop_blocks(items, kPassThreads));
  visit_device_type(problem.dtype, [&]<typename T>(T) {
    launch_kernel<separate_pass_kernel<T>>(site, grid, kPassThreads, 0, params);
  });
}

}  // namespace convx
