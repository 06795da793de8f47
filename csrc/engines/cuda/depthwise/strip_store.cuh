// Stores a strip's outputs of one row, or nothing if they are not wanted.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/depthwise/depthwise_params.h"

namespace convx {

// Strips begin at multiples of their size: one vector store.
template <typename T, int kColumns, bool kShifted>
struct StripStore {
  __device__ __forceinline__ StripStore(int, int) {}

  __device__ __forceinline__ void operator()(T* to, const float (&sum)[kColumns],
                                             bool wanted) const {
    if constexpr (kColumns == 1) {
      if (wanted) *to = round_to<T>(sum[0]);
    } else {
      constexpr int kWords = kColumns * sizeof(T) / 4;
      uint32_t words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = narrow(sum, i * kColumns / kWords, T{});
      if (wanted) store_words<kWords>(to, words);
    }
  }
};

// Rows begin at any multiple of 4 bytes, and the strips of a warp are neighbours. Each lane stores
// the aligned 16 bytes in which its strip begins, with words received from the lane before:
//
//      lane 0        lane 1        lane 2
//      [w w w w]     [w w w w]     [w w w w]           strips, 4 words each
//      |. . w w|w w   w w|w w w w   w w|w w ...        aligned chunks, phase 2
//
// Lane 0 receives the words of the last lane. It stores, word by word, the incomplete chunks at
// both ends of the warp's part of a row. So does the lane in which the row ends.
template <typename T>
struct StripStore<T, 8, true> {
  static constexpr int kStripWords = 4;
  static constexpr int kWarpWords = 32 * kStripWords;
  int lane;
  int words_left;  // words of the row from the strip's first on; may be negative

  __device__ __forceinline__ StripStore(int strip, int columns)
      : lane(static_cast<int>(threadIdx.x) % 32), words_left(columns / 2 - strip * kStripWords) {}

  __device__ __forceinline__ void operator()(T* to, const float (&sum)[8], bool wanted) const {
    uint32_t line[3 + kStripWords];  // the last three words of the previous lane, then its own
#pragma unroll
    for (int i = 0; i < kStripWords; ++i) line[3 + i] = narrow(sum, i * 2, T{});
#pragma unroll
    for (int i = 0; i < 3; ++i) line[i] = __shfl_sync(0xffffffffu, line[4 + i], (lane + 31) % 32);
    const int phase = static_cast<unsigned>(reinterpret_cast<uintptr_t>(to)) / 4 % 4;
    uint32_t even[5];  // line, shifted by the even part of the phase
    uint32_t chunk[4];
#pragma unroll
    for (int i = 0; i < 5; ++i) even[i] = phase & 2 ? line[i] : line[i + 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk[i] = phase & 1 ? even[i] : even[i + 1];

    uint32_t* aligned = reinterpret_cast<uint32_t*>(to) - phase;
    const int end = wanted ? words_left + phase : 0;
    const int first = lane == 0 ? phase : 0;
    if (first == 0 && end >= 4) {
      store_words<4>(aligned, chunk);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int word = i < first ? i + kWarpWords : i;
        if (word < end) aligned[word] = chunk[i];
      }
    }
  }
};

}  // namespace convx
