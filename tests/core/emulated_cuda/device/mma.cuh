// In place of csrc's: a warp's product, after the layouts that NVIDIA's manual gives for
// mma.m16n8k8 and mma.m16n8k16.
#pragma once

#include <cmath>

#include "device/wgmma.cuh"
#include "warps.h"

namespace emulator {

template <typename Operand>
float operand_value(uint32_t word, int half) {
  return static_cast<float>(Operand{static_cast<uint16_t>(word >> 16 * half)});
}
template <>
inline float operand_value<convx::Tf32>(uint32_t word, int) {
  return convx::bits_to_float(word & 0xffffe000u);
}

// Tensor cores add numbers of one exponent, the largest term's, with a bit or two more than a
// float32 has, and drop what is below: results are too small, if anything.
inline float add_truncated(const double* terms, int count) {
  double largest = 0, sum = 0;
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    finite = finite && std::isfinite(terms[i]);
    largest = std::max(largest, std::abs(terms[i]));
  }
  int exponent = 0;
  std::frexp(largest, &exponent);
  const double quantum = std::ldexp(1.0, exponent - 25);
  for (int i = 0; i < count; ++i) {
    sum += finite && largest > 0 ? std::trunc(terms[i] / quantum) * quantum : terms[i];
  }
  const float rounded = static_cast<float>(sum);
  return std::isfinite(rounded) && std::abs(double{rounded}) > std::abs(sum)
             ? std::nextafter(rounded, 0.0f)
             : rounded;
}

}  // namespace emulator

namespace convx {

template <typename Operand>
struct Mma {
  static void multiply(float* sums, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    constexpr bool kWide = std::is_same_v<Operand, Tf32>;
    const emulator::Shown& all = emulator::show_in_warp({a[0], a[1], a[2], a[3], b0, b1});
    const int lane = threadIdx.x % 32;
    const int group = lane / 4, in_group = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row_half = i / 2, column = 2 * in_group + i % 2;
      constexpr int kDepth = kWide ? 8 : 16;
      double terms[kDepth + 1] = {sums[i]};
      for (int k = 0; k < kDepth; ++k) {
        const int word = kWide ? k / 4 : k / 8;
        const int quad = kWide ? k % 4 : k % 8 / 2, half = kWide ? 0 : k % 2;
        const uint32_t a_word = all.words[4 * group + quad][2 * word + row_half];
        const uint32_t b_word = all.words[4 * column + quad][4 + word];
        terms[k + 1] = double{emulator::operand_value<Operand>(a_word, half)} *
                       emulator::operand_value<Operand>(b_word, half);
      }
      sums[i] = emulator::add_truncated(terms, kDepth + 1);
    }
  }
};

}  // namespace convx
