// A operands of the row kernel that go through registers: float32 rows of dY as MMA fragments.
#pragma once

#include "device/shared_memory.cuh"
#include "engines/cuda/weight_grad/load_item.cuh"

namespace convx {

// The A fragments of a step: [component][MMA][register].
template <OperandForm kForm>
struct RowFragments {
  static constexpr int kComponents = count_components(kForm);
  uint32_t word[kComponents][4][4];

  // Rounds or splits the values of this thread's two rows. stage: raw rows of the warpgroup.
  // scales: where a value that does not fit is reported, or null.
  __device__ __forceinline__ void load(uint32_t stage, float scale, HalfScales* scales) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t from = stage + (row + 8 * i) * gradient_pitch(4) + lane % 4 * 8;
      float values[16];
#pragma unroll
      for (int j = 0; j < 8; ++j) {  // pixels 8j + 2(lane % 4) and the next
        uint32_t pair[2];
        load_8_bytes(from + 32 * j, pair);
        values[2 * j] = __uint_as_float(pair[0]) * scale;
        values[2 * j + 1] = __uint_as_float(pair[1]) * scale;
      }
      // The four lanes that have pixels of the same row judge together.
      if (scales) check_fitness(scales, values, 0xfu << (lane / 4 * 4));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uint32_t words[kComponents];
        split_pair<kForm>(values[2 * j], values[2 * j + 1], words);
#pragma unroll
        for (int component = 0; component < kComponents; ++component) {
          word[component][j / 2][j % 2 * 2 + i] = words[component];
        }
      }
    }
  }
};

}  // namespace convx
