// Loads 16 bytes of a tensor whose address is not a multiple of 16, which therefore has no tensor
// map.
#pragma once

#include "device/shared_memory.cuh"
#include "device/tensor_rounding.cuh"

namespace convx {

// Writes 16 bytes to shared memory: the first `left` 16-bit words from memory, then zeros. With
// kRounds the words are float32 values and are rounded to TF32.
template <bool kRounds = false>
__device__ __forceinline__ void gather_unit(const uint16_t* from, int left, uint32_t to) {
  uint32_t words[4] = {};
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    if (w < left) words[w / 2] |= static_cast<uint32_t>(from[w]) << w % 2 * 16;
  }
  if constexpr (kRounds) {
#pragma unroll
    for (uint32_t& word : words) word = round_to_tf32(__uint_as_float(word));
  }
  store_16_bytes(to, words);
}

}  // namespace convx
