// In place of csrc's: a warp's product, after the layouts that NVIDIA's manual gives for
// mma.m16n8k8 and mma.m16n8k16.
#pragma once

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
      double sum = sums[i];
      for (int k = 0; k < (kWide ? 8 : 16); ++k) {
        const int word = kWide ? k / 4 : k / 8;
        const int quad = kWide ? k % 4 : k % 8 / 2, half = kWide ? 0 : k % 2;
        sum += double{emulator::operand_value<Operand>(all.words[4 * group + quad][2 * word + row_half],
                                                       half)} *
               emulator::operand_value<Operand>(all.words[4 * column + quad][4 + word], half);
      }
      sums[i] = static_cast<float>(sum);
    }
  }
};

}  // namespace convx
