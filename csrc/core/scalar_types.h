// 16-bit floating-point storage types for host code, and the type each dtype accumulates in.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace convx {

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct BFloat16 {
  uint16_t bits;

  operator float() const { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

  static BFloat16 from_float(float value) {
    const uint32_t u = float_to_bits(value);
    // Round to nearest even; a NaN stays one, whatever its payload.
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    return {static_cast<uint16_t>(is_nan ? 0x7fc0u : rounded)};
  }
};

struct Half {
  uint16_t bits;

  // Branch-free, so that loops over it vectorise. Shifting the 15 magnitude bits into float
  // position leaves the exponent short by 112; multiplying by 2^112 corrects normals and
  // subnormals alike, and Inf/NaN get the full exponent.
  operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    const float scaled = bits_to_float(magnitude) * bits_to_float(0x77800000u);  // 2^112
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    return bits_to_float(float_to_bits(scaled) | special | sign);
  }

  static Half from_float(float value) {
    const uint32_t u = float_to_bits(value);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {  // NaN
      half = 0x7e00u;
    } else if (magnitude >= 0x47800000u) {  // at least 65536: Inf
      half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal or zero
      // Adding 0.5 puts the unit of a half subnormal (2^-24) in the last place of the float sum,
      // so the addition itself rounds to nearest even.
      half = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
    } else {  // normal: rebias the exponent by -112, round to nearest even; overflow gives Inf
      half = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    return {static_cast<uint16_t>(sign | half)};
  }
};

template <typename T>
struct AccumulateIn {
  using type = float;
};
template <>
struct AccumulateIn<double> {
  using type = double;
};
template <typename T>
using accumulate_t = typename AccumulateIn<T>::type;

// Rounds an accumulated value to the storage type.
template <typename T, typename Acc>
T convert_to(Acc value) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return T::from_float(value);
  }
}

}  // namespace convx
