// Residuals and activations (core/epilogue.h) over runs of accumulators.

#include "core/activations.inl"

// exp, tanh and erf of float32 values without branches, so that loops over them vectorise. Relative
// errors are below 3e-7 (tests/torch/test_fused.py). The coefficients are minimax polynomials.
struct VectorMath {
  static inline __attribute__((always_inline)) float power_of_two(int32_t exponent) {
    return bits_to_float(static_cast<uint32_t>(exponent + 127) << 23);
  }

  static inline __attribute__((always_inline)) float exp(float v) {
    constexpr float kLog2e = 1.44269504f, kRounder = 12582912.f;  // 1.5 * 2^23
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.1219444e-4f;
    const float x = v < -104.f ? -104.f : v > 89.f ? 89.f : v;
    const float n = (x * kLog2e + kRounder) - kRounder;
    const float r = (x - n * kLn2High) - n * kLn2Low;
    float p = 1.3814537e-3f;
    p = p * r + 8.3687453e-3f;
    p = p * r + 4.1668391e-2f;
    p = p * r + 1.66665204e-1f;
    p = p * r + 4.99999934e-1f;
    // Two factors, because 2^n itself may be subnormal or overflow early.
    const int32_t exponent = static_cast<int32_t>(n), half = exponent >> 1;
    return (1 + (r + r * r * p)) * power_of_two(half) * power_of_two(exponent - half);
  }

  static inline __attribute__((always_inline)) float tanh(float v) {
    const float size = std::fabs(v), z = v * v;
    float p = -5.4625779e-3f;
    p = p * z + 2.04232877e-2f;
    p = p * z - 5.36747245e-2f;
    p = p * z + 1.33306925e-1f;
    p = p * z - 3.33332564e-1f;
    const float near = v + v * z * p;
    const float far = std::copysign(1 - 2 / (exp(2 * size) + 1), v);
    return size < 0.625f ? near : far;
  }

  static inline __attribute__((always_inline)) float erf(float v) {
    const float size = std::fabs(v), z = v * v;
    float p = 7.8538577e-5f;
    p = p * z - 8.0101925e-4f;
    p = p * z + 5.1883276e-3f;
    p = p * z - 2.6853812e-2f;
    p = p * z + 1.12835851e-1f;
    p = p * z - 3.76126258e-1f;
    p = p * z + 1.28379166e-1f;
    const float near = v + v * p;
    const float a = size > 4 ? 4 : size;
    float q = -1.66828568e-4f;
    q = q * a + 2.76205676e-3f;
    q = q * a - 2.11192935e-2f;
    q = q * a + 1.01652242e-1f;
    q = q * a + 6.39768323e-1f;
    q = q * a + 1.12614064f;
    q = q * a + 5.6838120e-4f;
    const float far = std::copysign(1 - exp(-q), v);
    return size < 1 ? near : far;
  }
};

template <typename Acc>
using MathOf = std::conditional_t<sizeof(Acc) == 4, VectorMath, LibraryMath>;

template <typename Acc>
void activate_run(const Epilogue& epilogue, Acc* values, int64_t count) {
  visit_activation(epilogue.activation, [&]<Activation kActivation>() {
    const Acc slope = static_cast<Acc>(epilogue.slope);
    for (int64_t j = 0; j < count; ++j) {
      values[j] = activate<kActivation, MathOf<Acc>>(values[j], slope);
    }
  });
}

// Finishes a segment of a tile: adds bias and residual, activates, rounds and stores. A run goes
// along the axis whose elements are neighbours in the target.
template <typename T>
void store_finished_segment(const accumulate_t<T>* tile, const TileStore& store, int64_t offset,
                            int64_t count) {
  using Acc = accumulate_t<T>;
  constexpr int64_t kRun = 64;
  T* const target = static_cast<T*>(store.target) + offset;
  const T* const residual =
      store.residual ? static_cast<const T*>(store.residual) + offset : nullptr;
  const T* const bias = static_cast<const T*>(store.bias);
  struct Axis {
    int64_t extent, in_tile, in_target, in_bias;
  };
  const int64_t pitch = store.pitch;
  Axis along{count, store.rows_are_contiguous ? pitch : 1, store.column_stride, 0};
  Axis across{store.rows, store.rows_are_contiguous ? 1 : pitch, store.row_stride, 1};
  if (store.row_stride == 1 && store.column_stride != 1) std::swap(along, across);
  for (int64_t i = 0; i < across.extent; ++i) {
    for (int64_t first = 0; first < along.extent; first += kRun) {
      const int64_t length = along.extent - first < kRun ? along.extent - first : kRun;
      const Acc* const from = tile + i * across.in_tile + first * along.in_tile;
      const int64_t at = i * across.in_target + first * along.in_target;
      const T* const shift = bias ? bias + i * across.in_bias + first * along.in_bias : nullptr;
      Acc run[kRun];
      for (int64_t j = 0; j < length; ++j) run[j] = from[j * along.in_tile];
      if (shift) {
        for (int64_t j = 0; j < length; ++j) run[j] += static_cast<Acc>(shift[j * along.in_bias]);
      }
      if (residual) {
        for (int64_t j = 0; j < length; ++j) {
          run[j] += static_cast<Acc>(residual[at + j * along.in_target]);
        }
      }
      activate_run(store.epilogue, run, length);
      for (int64_t j = 0; j < length; ++j) {
        target[at + j * along.in_target] = convert_to<T>(run[j]);
      }
    }
  }
}
