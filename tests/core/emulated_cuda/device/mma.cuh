// In place of csrc's: a warp's product, after the layouts that NVIDIA's manual gives for
// mma.m16n8k8 and mma.m16n8k16.
#pragma once

#include <cmath>

#include "device/wgmma.cuh"
#include "warps.h"

namespace emulator {

template <typename Operand>
[[gnu::always_inline]] inline double operand_value(uint32_t word, int half) {
  using Value = convx::EmulatedValue<Operand>;
  return Value::decode(static_cast<typename Value::Bits>(word >> 16 * half));
}

// Tensor cores add numbers of one exponent, the largest term's, with a bit or two more than a
// float32 has, and drop what is below: results are too small, if anything.
inline float add_truncated(const double* terms, int count) {
  double largest = 0, sum = 0;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(terms[i]));
    sum += terms[i];
  }
  // Not where there is a NaN or an infinity, or nothing but zeros.
  if (std::isfinite(sum) && largest > 0) {
    int exponent = 0;
    std::frexp(largest, &exponent);
    int64_t quanta = 0;
    const double in_quanta = std::ldexp(1.0, 25 - exponent);
    for (int i = 0; i < count; ++i) quanta += static_cast<int64_t>(terms[i] * in_quanta);
    sum = static_cast<double>(quanta) / in_quanta;
  }
  const float rounded = static_cast<float>(sum);
  return std::isfinite(rounded) && std::abs(double{rounded}) > std::abs(sum)
             ? std::nextafter(rounded, 0.0f)
             : rounded;
}

}  // namespace emulator

namespace convx {

// To nearest, ties away from zero; infinities and NaN stay what they are.
inline uint32_t round_to_tf32(float value) {
  const uint32_t bits = float_to_bits(value);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

inline uint32_t pack_bfloat16(float first, float second) {
  return uint32_t{BFloat16::from_float(second).bits} << 16 | BFloat16::from_float(first).bits;
}
inline uint32_t pack_float16(float first, float second) {
  return uint32_t{Half::from_float(second).bits} << 16 | Half::from_float(first).bits;
}
inline void unpack_float16(uint32_t word, float& first, float& second) {
  first = Half{static_cast<uint16_t>(word)}, second = Half{static_cast<uint16_t>(word >> 16)};
}

template <typename Operand>
struct Mma {
  static void multiply(float* sums, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    constexpr bool kWide = std::is_same_v<Operand, Tf32>;
    const emulator::Shown& all = emulator::show_in_warp({a[0], a[1], a[2], a[3], b0, b1});
    const int group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    constexpr int kDepth = kWide ? 8 : 16;
    double rows[2][kDepth], columns[2][kDepth];  // this thread's
    for (int k = 0; k < kDepth; ++k) {
      const int word = kWide ? k / 4 : k / 8;
      const int quad = kWide ? k % 4 : k % 8 / 2, half = kWide ? 0 : k % 2;
      for (int i = 0; i < 2; ++i) {
        const uint32_t a_word = all.words[4 * group + quad][2 * word + i];
        const uint32_t b_word = all.words[4 * (2 * in_group + i) + quad][4 + word];
        rows[i][k] = emulator::operand_value<Operand>(a_word, half);
        columns[i][k] = emulator::operand_value<Operand>(b_word, half);
      }
    }
    for (int i = 0; i < 4; ++i) {
      double terms[kDepth + 1] = {sums[i]};
      for (int k = 0; k < kDepth; ++k) terms[k + 1] = rows[i / 2][k] * columns[i % 2][k];
      sums[i] = emulator::add_truncated(terms, kDepth + 1);
    }
  }
};

}  // namespace convx
