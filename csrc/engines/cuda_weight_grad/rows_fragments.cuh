// A operands of the row kernel that go through registers: float32 rows of dY as MMA fragments.
#pragma once

#include "device/shared_memory.cuh"
#include "engines/cuda_weight_grad/load_item.cuh"

namespace convx {

// A thread makes fragments of 16 pixels of two rows.
inline constexpr int kFragmentRows = 2;

// The values of one of them.
struct RawRow {
  float value[16];

  // stage: raw rows of the warpgroup. row: of the thread.
  __device__ __forceinline__ void load(uint32_t stage, int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int filter = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4 + 8 * row;
    const uint32_t from = stage + filter * gradient_pitch(4) + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // pixels 8j + 2(lane % 4) and the next
      uint32_t pair[2];
      load_8_bytes(from + 32 * j, pair);
      value[2 * j] = __uint_as_float(pair[0]);
      value[2 * j + 1] = __uint_as_float(pair[1]);
    }
  }
};

// The A fragments of a step: [component][MMA][register].
template <OperandForm kForm>
struct RowFragments {
  static constexpr int kComponents = count_components(kForm);
  uint32_t word[kComponents][4][4];

  // Copies the fragments after the MMAs that read these ones. zero: a zero that the compiler does
  // not know. It would leave out a plain copy, and then serialize MMAs, because input registers of
  // MMAs were defined while MMAs run (C7513).
  __device__ __forceinline__ void copy(const RowFragments& from, uint32_t zero) {
#pragma unroll
    for (int component = 0; component < kComponents; ++component) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        word[component][i / 4][i % 4] = from.word[component][i / 4][i % 4] ^ zero;
      }
    }
  }

  // Rounds or splits the values of one row. scales: where a value that does not fit is reported, or
  // null.
  __device__ __forceinline__ void convert(const RawRow& raw, int row, float scale,
                                          HalfScales* scales) {
    float values[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) values[j] = raw.value[j] * scale;
    // The four lanes that have pixels of the same row judge together.
    if (scales) check_fitness(scales, values, 0xfu << (threadIdx.x % 32 / 4 * 4));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t words[kComponents];
      split_pair<kForm>(values[2 * j], values[2 * j + 1], words);
#pragma unroll
      for (int component = 0; component < kComponents; ++component) {
        word[component][j / 2][j % 2 * 2 + row] = words[component];
      }
    }
  }
};

}  // namespace convx
