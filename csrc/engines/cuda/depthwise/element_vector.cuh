// Neighbouring elements (columns of a row, or channels of a pixel) on their way through registers,
// and the rows of accumulators or source values that threads keep there while they go down a plane.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/vectors.cuh"

namespace convx {

// kCount neighbouring elements as they are in memory, aligned to their size.
template <typename T, int kCount>
struct ElementVector {
  static constexpr int kWordElements = 4 / sizeof(T);
  static constexpr int kWords = std::max(1, kCount / kWordElements);
  uint32_t words[kWords];

  // Loads zeros if valid is false.
  __device__ __forceinline__ void load(const T* from, bool valid) {
    if constexpr (kCount == 1) {
      words[0] = load_single(from, valid);
    } else {
      load_words<kWords>(words, from, valid);
    }
  }
  __device__ __forceinline__ void widen_to(float (&to)[kCount]) const {
    constexpr int kElements = std::min(kCount, kWordElements);
#pragma unroll
    for (int w = 0; w < kWords; ++w) widen_word<kElements>(to, w * kWordElements, words[w], T{});
  }
};

template <typename T, int kCount>
__device__ __forceinline__ void store_elements(T* to, const float (&from)[kCount]) {
  struct alignas(kCount * sizeof(T)) Vector {
    T v[kCount];
  } vector;
#pragma unroll
  for (int i = 0; i < kCount; ++i) vector.v[i] = round_to<T>(from[i]);
  *reinterpret_cast<Vector*>(to) = vector;
}

// Loads one, two or four neighbouring elements from shared memory.
template <int kCount, typename T>
__device__ __forceinline__ void load_elements(float (&to)[kCount], const T* from) {
  if constexpr (kCount == 1) {
    to[0] = to_accumulate(*from);
  } else if constexpr (kCount == 4) {
    load_vector(to, from);
  } else if constexpr (sizeof(T) == 4) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    to[0] = pair.x, to[1] = pair.y;
  } else {
    widen(to, 0, *reinterpret_cast<const uint32_t*>(from), T{});
  }
}

// Sets every value of an array of any rank.
template <typename Values>
__device__ __forceinline__ void fill(Values& values, float value) {
  if constexpr (std::is_array_v<Values>) {
#pragma unroll
    for (auto& inner : values) fill(inner, value);
  } else {
    values = value;
  }
}

// Copies an array of any rank.
template <typename Values>
__device__ __forceinline__ void copy_values(Values& to, const Values& from) {
  if constexpr (std::is_array_v<Values>) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(std::extent_v<Values>); ++i) copy_values(to[i], from[i]);
  } else {
    to = from;
  }
}

// Moves each row to the next index. Row 0 keeps its values.
template <typename Row, int kRows>
__device__ __forceinline__ void shift_rows(Row (&rows)[kRows]) {
#pragma unroll
  for (int m = kRows - 1; m > 0; --m) copy_values(rows[m], rows[m - 1]);
}

}  // namespace convx
