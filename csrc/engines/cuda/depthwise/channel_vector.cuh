// Neighbouring channels of one pixel: the loads, conversions and stores of the channels_last
// kernels.
#pragma once

#include <algorithm>

#include "device/vectors.cuh"

namespace convx {

// kChannels neighbouring elements as they are in memory.
template <typename T, int kChannels>
struct ChannelVector {
  static constexpr int kWordElements = 4 / sizeof(T);
  static constexpr int kWords = std::max(1, kChannels / kWordElements);
  uint32_t words[kWords];

  // Loads zeros if valid is false.
  __device__ __forceinline__ void load(const T* from, bool valid) {
    if constexpr (kChannels < kWordElements) {
      words[0] = load_single(from, valid);
    } else {
      load_words<kWords>(words, from, valid);
    }
  }
  __device__ __forceinline__ void widen_to(float (&to)[kChannels]) const {
    constexpr int kElements = std::min(kChannels, kWordElements);
#pragma unroll
    for (int w = 0; w < kWords; ++w) widen_word<kElements>(to, w * kWordElements, words[w], T{});
  }
};

template <typename T, int kChannels>
__device__ __forceinline__ void store_channels(T* to, const float (&from)[kChannels]) {
  struct alignas(kChannels * sizeof(T)) Vector {
    T v[kChannels];
  } vector;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) vector.v[i] = round_to<T>(from[i]);
  *reinterpret_cast<Vector*>(to) = vector;
}

// Loads one, two or four neighbouring channels from shared memory.
template <int kChannels, typename T>
__device__ __forceinline__ void load_channels(float (&to)[kChannels], const T* from) {
  if constexpr (kChannels == 1) {
    to[0] = to_accumulate(*from);
  } else if constexpr (kChannels == 4) {
    load_vector(to, from);
  } else if constexpr (sizeof(T) == 4) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    to[0] = pair.x, to[1] = pair.y;
  } else {
    widen(to, 0, *reinterpret_cast<const uint32_t*>(from), T{});
  }
}

}  // namespace convx
