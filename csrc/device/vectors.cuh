// Loads and stores of neighbouring elements of shared or global memory, as float32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/convert.cuh"

namespace convx {

// Four neighbouring values, loaded and stored in units of 16 bytes.
template <typename Acc>
struct alignas(16) Vec4 {
  Acc v[4];
};

template <typename Acc>
__device__ __forceinline__ void load_vec4(Acc (&to)[4], const Acc* from) {
  const Vec4<Acc> vector = *reinterpret_cast<const Vec4<Acc>*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = vector.v[i];
}

template <typename Acc>
__device__ __forceinline__ void store_vec4(Acc* to, const Acc* from) {
  Vec4<Acc> vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) vector.v[i] = from[i];
  *reinterpret_cast<Vec4<Acc>*>(to) = vector;
}

// widen converts the one or two elements of a word to float32, narrow rounds them back.
template <int kCount>
__device__ __forceinline__ void widen(float (&to)[kCount], int first, uint32_t word, float) {
  to[first] = __uint_as_float(word);
}
template <int kCount>
__device__ __forceinline__ void widen(float (&to)[kCount], int first, uint32_t word,
                                      __nv_bfloat16) {
  to[first] = __uint_as_float(word << 16);
  to[first + 1] = __uint_as_float(word & 0xffff0000u);
}
template <int kCount>
__device__ __forceinline__ void widen(float (&to)[kCount], int first, uint32_t word, __half) {
  __half2 pair;
  memcpy(&pair, &word, sizeof pair);
  to[first] = __low2float(pair);
  to[first + 1] = __high2float(pair);
}

template <int kCount>
__device__ __forceinline__ uint32_t narrow(const float (&from)[kCount], int first, float) {
  return __float_as_uint(from[first]);
}
template <int kCount>
__device__ __forceinline__ uint32_t narrow(const float (&from)[kCount], int first, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(from[first], from[first + 1]);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
template <int kCount>
__device__ __forceinline__ uint32_t narrow(const float (&from)[kCount], int first, __half) {
  const __half2 pair = __floats2half2_rn(from[first], from[first + 1]);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

// Converts the word's elements, or only the lower one of two if kElements is 1.
template <int kElements, typename T, int kCount>
__device__ __forceinline__ void widen_word(float (&to)[kCount], int first, uint32_t word, T) {
  if constexpr (kElements * sizeof(T) == 4) {
    widen(to, first, word, T{});
  } else {
    float pair[2];
    widen(pair, 0, word, T{});
    to[first] = pair[0];
  }
}

// Loads one element of global memory into the lower end of a word, or zero if valid is false.
template <typename T>
__device__ __forceinline__ uint32_t load_single(const T* from, bool valid) {
  using Bits = std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>;
  return valid ? __ldg(reinterpret_cast<const Bits*>(from)) : 0;
}

// Loads 4, 8 or 16 bytes of global memory, aligned to as many, or zeros if valid is false.
template <int kWords>
__device__ __forceinline__ void load_words(uint32_t* to, const void* from, bool valid) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
#pragma unroll
  for (int i = 0; i < kWords; ++i) to[i] = 0;
  if (!valid) return;
  if constexpr (kWords == 4) {
    const uint4 words = __ldg(static_cast<const uint4*>(from));
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  } else if constexpr (kWords == 2) {
    const uint2 words = __ldg(static_cast<const uint2*>(from));
    to[0] = words.x, to[1] = words.y;
  } else {
    to[0] = __ldg(static_cast<const unsigned*>(from));
  }
}
// Loads words from any element's address, element by element.
template <int kWords, typename T>
__device__ __forceinline__ void load_words_of_elements(uint32_t* to, const T* from, bool valid) {
  constexpr int kElements = 4 / sizeof(T);  // per word
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    to[i] = load_single(from + i * kElements, valid);
    if constexpr (kElements == 2) to[i] |= load_single(from + i * 2 + 1, valid) << 16;
  }
}
template <int kWords>
__device__ __forceinline__ void store_words(void* to, const uint32_t (&from)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    *static_cast<uint4*>(to) = uint4{from[0], from[1], from[2], from[3]};
  } else if constexpr (kWords == 2) {
    *static_cast<uint2*>(to) = uint2{from[0], from[1]};
  } else {
    *static_cast<uint32_t*>(to) = from[0];
  }
}

__device__ __forceinline__ void load_vector(float (&to)[4], const float* from) {
  load_vec4(to, from);
}
template <typename T>
__device__ __forceinline__ void load_vector(float (&to)[4], const T* from) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  widen(to, 0, words.x, T{});
  widen(to, 2, words.y, T{});
}

// Loads kVectors vectors from an address that is kSkip elements behind a multiple of 16 bytes, with
// loads of 16 bytes as far as they go.
template <int kSkip, int kVectors>
__device__ __forceinline__ void load_window(float (&to)[kVectors][4], const float* from) {
  static_assert(kSkip == 0);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) load_vector(to[v], from + v * 4);
}
template <int kSkip, int kVectors, typename T>
__device__ __forceinline__ void load_window(float (&to)[kVectors][4], const T* from) {
  constexpr int kFirst = kSkip / 4;  // the first vector that begins at a multiple of 16 bytes
  if constexpr (kFirst == 1) load_vector(to[0], from);
#pragma unroll
  for (int v = kFirst; v + 1 < kVectors; v += 2) {
    const uint4 words = *reinterpret_cast<const uint4*>(from + v * 4);
    widen(to[v], 0, words.x, T{});
    widen(to[v], 2, words.y, T{});
    widen(to[v + 1], 0, words.z, T{});
    widen(to[v + 1], 2, words.w, T{});
  }
  if constexpr ((kVectors - kFirst) % 2 == 1) {
    load_vector(to[kVectors - 1], from + (kVectors - 1) * 4);
  }
}

template <typename T>
__device__ __forceinline__ void store_vector(T* to, const float (&from)[4]) {
  struct alignas(4 * sizeof(T)) Vector {
    T v[4];
  } vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) vector.v[i] = round_to<T>(from[i]);
  *reinterpret_cast<Vector*>(to) = vector;
}

}  // namespace convx
