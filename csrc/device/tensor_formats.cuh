// float32 values in the formats that tensor cores multiply (sm_80).
#pragma once

#include <cstdint>

namespace convx {

__device__ __forceinline__ uint32_t round_to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(value));
  return bits;
}

// Two values as bfloat16 in one word, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bfloat16(float first, float second) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

}  // namespace convx
