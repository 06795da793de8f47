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

// The same as float16, to nearest, ties to even.
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
