// Rounding of float32 to what tensor cores multiply (sm_80).
#pragma once

#include <cstdint>

namespace convx {

// To nearest. sm_90 has an instruction for it, ties to even; before, it takes three.
__device__ __forceinline__ uint32_t round_to_tf32(float value) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(value));
#else
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(value));
#endif
  return bits;
}

// Two values as bfloat16 in one word, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bfloat16(float first, float second) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

// The same as float16.
__device__ __forceinline__ uint32_t pack_float16(float first, float second) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

}  // namespace convx
