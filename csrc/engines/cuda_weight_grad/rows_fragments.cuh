// A operands of the row kernel: a thread's values of dY, from a raw row to MMA fragments.
#pragma once

#include "device/shared_memory.cuh"
#include "engines/cuda_weight_grad/load_item.cuh"

namespace convx {

// 16 neighbouring values of a raw row, in words.
template <typename T>
struct RowPiece {
  static constexpr int kWords = 16 * sizeof(T) / 4;
  uint32_t word[kWords + 4];

  // address: of the 16-byte unit in which the piece begins, `phase` bytes behind the unit's start.
  // All lanes of a warp must call it.
  __device__ __forceinline__ RowPiece(uint32_t address, int phase) {
#pragma unroll
    for (int i = 0; i < kWords + 4; i += 4) {
      uint32_t unit[4];
      load_16_bytes(address + 4 * i, unit);
#pragma unroll
      for (int j = 0; j < 4; ++j) word[i + j] = unit[j];
    }
    // Registers have no dynamic index: shifts by 2 words, by 1 word and by half a word.
    if (__any_sync(0xffffffff, (phase & 8) != 0)) shift_by<2>((phase & 8) != 0);
    if (__any_sync(0xffffffff, (phase & 4) != 0)) shift_by<1>((phase & 4) != 0);
    if constexpr (sizeof(T) == 2) {
      if (!__any_sync(0xffffffff, (phase & 2) != 0)) return;
      const uint32_t selector = (phase & 2) != 0 ? 0x5432 : 0x3210;
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = __byte_perm(word[i], word[i + 1], selector);
    }
  }

  // Clears all values but the first `count`, which may be negative.
  __device__ __forceinline__ void keep(int count) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        if (i >= count) word[i] = 0;
      } else {
        if (2 * i >= count) word[i] = 0;
        if (2 * i + 1 == count) word[i] &= 0xffff;
      }
    }
  }

 private:
  template <int kDistance>
  __device__ __forceinline__ void shift_by(bool shifts) {
#pragma unroll
    for (int i = 0; i + kDistance < kWords + 4; ++i) {
      word[i] = shifts ? word[i + kDistance] : word[i];
    }
  }
};

// The A fragments of a step: [component][MMA][register].
template <OperandForm kForm>
struct RowFragments {
  static constexpr int kComponents = count_components(kForm);
  uint32_t word[kComponents][4][4];

  // upper: whether the row is the fragment's first (row t / 4 of the warp's 16) or second one.
  template <typename T>
  __device__ __forceinline__ void set(const RowPiece<T>& piece, int upper, float scale,
                                      HalfScales* scales) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) word[0][i / 2][i % 2 * 2 + upper] = piece.word[i];
    } else {
      float values[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        values[i] = __uint_as_float(piece.word[i]);
        if constexpr (is_scaled(kForm)) values[i] *= scale;
      }
      if constexpr (is_scaled(kForm)) {
        // The four lanes that have pieces of the same row judge together.
        if (scales) check_fitness(scales, values, 0xfu << (threadIdx.x % 32 / 4 * 4));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint32_t words[kComponents];
        split_pair<kForm>(values[2 * i], values[2 * i + 1], words);
#pragma unroll
        for (int j = 0; j < kComponents; ++j) word[j][i / 2][i % 2 * 2 + upper] = words[j];
      }
    }
  }
};

}  // namespace convx
