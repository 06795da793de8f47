// Residuals and activations (core/epilogue.h) over runs of accumulators.

#include "core/activations.inl"

// exp, tanh and erf of float32 values without branches, so that loops over them vectorise. Relative
// errors are below 3e-7 (tests/torch/test_fused.py). The coefficients are minimax polynomials.
struct VectorMath {
  static inline __attribute__((always_inline)) float power_of_two(int32_t exponent) {
    return bits_to_float(static_cast<uint32_t>(exponent + 127) << 23);
  }

  template <typename Acc>
  static inline __attribute__((always_inline)) Acc divide(Acc a, Acc b) {
    return a / b;
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

// run += in
template <typename T, typename Acc>
inline void add_run(const T* in, int64_t stride, Acc* run, int64_t count) {
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  int64_t j = 0;
  if constexpr (std::is_same_v<T, Acc>) {
    for (; stride == 1 && j + lanes <= count; j += lanes) {
      *reinterpret_cast<Loose*>(run + j) += *reinterpret_cast<const Loose*>(in + j);
    }
  }
  if (stride == 1) {
    for (; j < count; ++j) run[j] += static_cast<Acc>(in[j]);
  } else {
    for (; j < count; ++j) run[j] += static_cast<Acc>(in[j * stride]);
  }
}

// run += shift
template <typename Acc>
inline void shift_run(Acc shift, Acc* run, int64_t count) {
  using Loose = typename VectorTypes<Acc>::Loose;
  constexpr int lanes = kLanes<Acc>;
  int64_t j = 0;
  for (; j + lanes <= count; j += lanes) *reinterpret_cast<Loose*>(run + j) += shift;
  for (; j < count; ++j) run[j] += shift;
}

// Adds bias and residual to a segment of a tile in place. `offset` is the segment's in the target.
template <typename T>
void add_to_segment(accumulate_t<T>* tile, const TileStore& store, int64_t offset, int64_t count) {
  using Acc = accumulate_t<T>;
  struct Axis {
    int64_t extent, stride;
  };
  const Axis rows{store.rows, store.row_stride}, columns{count, store.column_stride};
  const Axis& along = store.rows_are_contiguous ? rows : columns;  // contiguous in the tile
  const Axis& across = store.rows_are_contiguous ? columns : rows;
  const T* const bias = static_cast<const T*>(store.bias);
  const T* const residual =
      store.residual == nullptr ? nullptr : static_cast<const T*>(store.residual) + offset;
  for (int64_t i = 0; i < across.extent; ++i) {
    Acc* const run = tile + i * store.pitch;
    if (bias != nullptr && store.rows_are_contiguous) add_run(bias, 1, run, along.extent);
    if (bias != nullptr && !store.rows_are_contiguous) {
      shift_run(static_cast<Acc>(bias[i]), run, along.extent);
    }
    if (residual != nullptr) {
      add_run(residual + i * across.stride, along.stride, run, along.extent);
    }
  }
}

// Finishes a tile in place: adds bias and residual, and activates everything, also what lies
// between segments and is not stored.
template <typename T>
void finish_tile(accumulate_t<T>* tile, const TileStore& store) {
  if (store.segment_count == 0) return;
  for (int64_t s = 0; s < store.segment_count; ++s) {
    const TileSegment& segment = store.segments[s];
    const int64_t step = store.rows_are_contiguous ? store.pitch : 1;
    add_to_segment<T>(tile + segment.position * step, store, segment.target, segment.count);
  }
  const TileSegment& last = store.segments[store.segment_count - 1];
  const int64_t columns = last.position + int64_t{last.count};
  const bool by_rows = !store.rows_are_contiguous;
  const int64_t runs = by_rows ? store.rows : columns, length = by_rows ? columns : store.rows;
  activate_run(store.epilogue, tile, (runs - 1) * store.pitch + length);
}
