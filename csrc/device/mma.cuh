// mma.sync, and rounding of float32 values to the formats of tensor cores (sm_80).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/wgmma.cuh"  // Tf32

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

// mma.sync: a warp multiplies a 16 x k by a k x 8 matrix.
// sums += a * b, with k = 8 TF32 or 16 16-bit values. Thread t holds elements of rows t/4 (a[0],
// a[2]) and t/4 + 8 (a[1], a[3]) of a, and of column t/4 of b:
//   TF32:    a[0], a[1] and b0: k = t%4;                     a[2], a[3] and b1: k = t%4 + 4
//   16-bit:  a[0], a[1] and b0: k = 2(t%4) and the next;     a[2], a[3] and b1: 8 further
//   sums[0], sums[1]: row t/4, columns 2(t%4) and the next;  sums[2], sums[3]: row t/4 + 8
template <typename Operand>
struct Mma;

#define CONVX_DEFINE_MMA(operand, shape_and_types)                                       \
  template <>                                                                            \
  struct Mma<operand> {                                                                  \
    static __device__ __forceinline__ void multiply(float* sums, const uint32_t (&a)[4], \
                                                    uint32_t b0, uint32_t b1) {          \
      asm("mma.sync.aligned." shape_and_types                                            \
          " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"           \
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                   \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));               \
    }                                                                                    \
  }
CONVX_DEFINE_MMA(Tf32, "m16n8k8.row.col.f32.tf32.tf32.f32");
CONVX_DEFINE_MMA(__half, "m16n8k16.row.col.f32.f16.f16.f32");
CONVX_DEFINE_MMA(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32");
#undef CONVX_DEFINE_MMA

}  // namespace convx
