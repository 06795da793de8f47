#include <algorithm>
#include <vector>

#include "core/scalar_types.h"
#include "engines/engines.h"

namespace convx {
namespace {

constexpr int64_t kChannels =
    16;  // summed together: a cache line of them, when they are neighbours
constexpr int64_t kLanes = 16;
constexpr int64_t kMaxParts = 32;

// sums[i] += row of channel i, for neighbouring channels; both loops run over registers.
template <typename T>
void add_row(const T* y, int64_t channels, int64_t channel_stride, int64_t columns,
             int64_t column_stride, double* sums) {
  using Acc = accumulate_t<T>;
  if (channel_stride == 1 && channels == kChannels) {
    Acc lanes[kChannels] = {};
    for (int64_t j = 0; j < columns; ++j, y += column_stride) {
      for (int64_t i = 0; i < kChannels; ++i) lanes[i] += static_cast<Acc>(y[i]);
    }
    for (int64_t i = 0; i < kChannels; ++i) sums[i] += lanes[i];
    return;
  }
  for (int64_t i = 0; i < channels; ++i) {
    const T* row = y + i * channel_stride;
    Acc lanes[kLanes] = {};
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        lanes[l] += static_cast<Acc>(row[(j + l) * column_stride]);
      }
    }
    for (int64_t l = 0; j < columns; ++j, ++l) lanes[l] += static_cast<Acc>(row[j * column_stride]);
    double sum = 0;
    for (Acc lane : lanes) sum += lane;
    sums[i] += sum;
  }
}

// Rows are cut into pieces, so that few values are added in float before they are added in double.
constexpr int64_t kColumns = 128;

template <typename T>
void sum_bias(const ConvProblem& p, const T* y, T* out, const TaskRunner& runner) {
  const Strides& strides = p.y_strides;
  const int64_t blocks = (p.K + kChannels - 1) / kChannels;
  const int64_t rows = p.N * p.P;
  const int64_t parts = std::clamp<int64_t>(rows / 64, 1, kMaxParts);
  std::vector<double> sums(parts * p.K, 0.0);  // [part][k]
  run_tasks(runner, parts * blocks, [&](int, int64_t index) {
    const int64_t part = index / blocks;
    const int64_t k = index % blocks * kChannels;
    double local[kChannels] = {};
    const int64_t channels = std::min(kChannels, p.K - k);
    for (int64_t row = part * rows / parts; row < (part + 1) * rows / parts; ++row) {
      const T* start = y + row / p.P * strides.n + row % p.P * strides.h + k * strides.c;
      for (int64_t q = 0; q < p.Q; q += kColumns) {
        add_row(start + q * strides.w, channels, strides.c, std::min(kColumns, p.Q - q), strides.w,
                local);
      }
    }
    std::copy_n(local, channels, sums.data() + part * p.K + k);
  });
  for (int64_t k = 0; k < p.K; ++k) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * p.K + k];
    out[k] = convert_to<T>(static_cast<accumulate_t<T>>(sum));
  }
}

}  // namespace

void cpu_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias,
                   const TaskRunner& runner) {
  auto sum_as = [&]<typename T>(T* out) {
    sum_bias(problem, static_cast<const T*>(y), out, runner);
  };
  switch (problem.dtype) {
    case DType::kFloat32:
      return sum_as(static_cast<float*>(grad_bias));
    case DType::kFloat64:
      return sum_as(static_cast<double*>(grad_bias));
    case DType::kFloat16:
      return sum_as(static_cast<Half*>(grad_bias));
    case DType::kBFloat16:
      return sum_as(static_cast<BFloat16*>(grad_bias));
  }
}

}  // namespace convx
