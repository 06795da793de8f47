// Rounds float32 values to the formats of tensor cores (sm_80).
#pragma once

#include <cstdint>

namespace convx {

// Rounds to nearest. Ties go to even on sm_90, where this is one instruction, and away from zero on
// older GPUs, where it takes three.
__device__ __forceinline__ uint32_t round_to_tf32(float value) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(value));
#else
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(value));
#endif
  return bits;
}

// Rounds two values to bfloat16; the first is in the lower half of the word.
__device__ __forceinline__ uint32_t pack_bfloat16(float first, float second) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

// Rounds two values to float16, ties to even; the first is in the lower half of the word.
__device__ __forceinline__ uint32_t pack_float16(float first, float second) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

__device__ __forceinline__ void unpack_float16(uint32_t word, float& first, float& second) {
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %2;\n"
      "cvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
      : "=f"(first), "=f"(second)
      : "r"(word));
}

}  // namespace convx
