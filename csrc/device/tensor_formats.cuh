// float32 values in the formats that tensor cores multiply (sm_80).
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

// Split float32 values are this much larger than the values: then no part of the smallest of them
// underflows. Values and sums too large for it become infinite or NaN, and are formed again in
// float32 when they are stored.
inline constexpr float kSplitScale = 0x1p24f;
inline constexpr float kSplitUnscale = 0x1p-48f;  // of a product of two

// kSplitScale * value = part 0 + part 1 + part 2 exactly, each a bfloat16: 24 bits are three
// times 8.
struct SplitPair {
  uint32_t part[3];

  __device__ __forceinline__ SplitPair(float first, float second) {
    first *= kSplitScale;
    second *= kSplitScale;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      part[i] = pack_bfloat16(first, second);
      first -= __uint_as_float(part[i] << 16);
      second -= __uint_as_float(part[i] & 0xffff0000u);
    }
  }
};

}  // namespace convx
