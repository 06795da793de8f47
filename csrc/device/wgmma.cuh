// wgmma: a warpgroup multiplies 64 rows by kColumns columns of shared memory (sm_90a).
//
// Operands are K-major and swizzled: a row of A, or a column of B, has 32, 64 or 128 contiguous
// bytes of the reduction, and each group of 8 rows follows directly on the previous one. One
// instruction takes 32 bytes of the reduction: 8 TF32 or 16 16-bit values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/wgmma_descriptors.cuh"

namespace convx {

// Call before the first wgmma, and after other instructions have accessed its accumulators or its
// operands in registers.
__device__ __forceinline__ void fence_wgmma() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ __forceinline__ void commit_wgmma() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// The 64 x kColumns accumulators of a warpgroup. Thread t of warp w holds, for every group g of 8
// columns,
//   value[4g + 0], value[4g + 1]: row 16w + t/4,     columns 8g + 2(t%4) and the next
//   value[4g + 2], value[4g + 3]: row 16w + t/4 + 8, the same columns.
template <int kColumns>
struct WgmmaSums {
  float value[kColumns / 2];
};

// sums = a * b, or sums += a * b if accumulate is not 0. a is in shared memory, or in registers. In
// registers, thread t of warp w holds elements of rows 16w + t/4 (a[0], a[2]) and 16w + t/4 + 8
// (a[1], a[3]):
//   TF32:    a[0], a[1]: k = t%4;                  a[2], a[3]: k = t%4 + 4
//   16-bit:  a[0], a[1]: k = 2(t%4) and the next;  a[2], a[3]: 8 further
template <typename Operand, int kColumns>
struct Wgmma;

// clang-format off: register lists read best as tables.
#define CONVX_REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CONVX_REGISTERS_16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CONVX_REGISTERS_16_TO_23 "%16, %17, %18, %19, %20, %21, %22, %23"
#define CONVX_REGISTERS_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CONVX_REGISTERS_48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CONVX_REGISTERS_64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define CONVX_REGISTERS_80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CONVX_REGISTERS_96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define CONVX_REGISTERS_112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CONVX_8_SUMS(v, i) \
  "+f"(v[i]), "+f"(v[i + 1]), "+f"(v[i + 2]), "+f"(v[i + 3]), "+f"(v[i + 4]), "+f"(v[i + 5]), \
  "+f"(v[i + 6]), "+f"(v[i + 7])
#define CONVX_SUMS(v, i) CONVX_8_SUMS(v, i), CONVX_8_SUMS(v, i + 8)
// n0 to n5: the numbers of the asm operands behind the accumulators.
#define CONVX_DEFINE_WGMMA(operand, columns, depth_and_types, a_flag, b_flag, registers, n0, n1, n2, n3, n4, n5, ...) \
  template <>                                                                                      \
  struct Wgmma<operand, columns> {                                                                 \
    static __device__ __forceinline__ void multiply(WgmmaSums<columns>& sums, uint64_t a_desc,     \
                                                    uint64_t b_desc, int accumulate) {             \
      float(&v)[columns / 2] = sums.value;                                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" n2 ", 0;\n"                                \
                   "wgmma.mma_async.sync.aligned.m64n" #columns depth_and_types " {" registers     \
                   "}, %" n0 ", %" n1 ", p, 1, 1" a_flag b_flag ";\n}\n"                           \
                   : __VA_ARGS__                                                                   \
                   : "l"(a_desc), "l"(b_desc), "r"(accumulate));                                   \
    }                                                                                              \
    static __device__ __forceinline__ void multiply(WgmmaSums<columns>& sums,                      \
                                                    const uint32_t (&a)[4], uint64_t b_desc,       \
                                                    int accumulate) {                              \
      float(&v)[columns / 2] = sums.value;                                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" n5 ", 0;\n"                                \
                   "wgmma.mma_async.sync.aligned.m64n" #columns depth_and_types " {" registers     \
                   "}, {%" n0 ", %" n1 ", %" n2 ", %" n3 "}, %" n4 ", p, 1, 1" b_flag ";\n}\n"     \
                   : __VA_ARGS__                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc), "r"(accumulate));    \
    }                                                                                              \
  }
// The register list, operand numbers and accumulators of each width.
#define CONVX_48_COLUMNS(define) \
  define(48, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16_TO_23, "24", "25", "26", "27", "28", "29", CONVX_SUMS(v, 0), CONVX_8_SUMS(v, 16))
#define CONVX_64_COLUMNS(define) \
  define(64, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16, "32", "33", "34", "35", "36", "37", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16))
#define CONVX_96_COLUMNS(define) \
  define(96, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16 ", " CONVX_REGISTERS_32, "48", "49", "50", "51", "52", "53", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16), CONVX_SUMS(v, 32))
#define CONVX_128_COLUMNS(define) \
  define(128, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16 ", " CONVX_REGISTERS_32 ", " CONVX_REGISTERS_48, "64", "65", "66", "67", "68", "69", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16), CONVX_SUMS(v, 32), CONVX_SUMS(v, 48))
#define CONVX_160_COLUMNS(define) \
  define(160, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16 ", " CONVX_REGISTERS_32 ", " CONVX_REGISTERS_48 ", " CONVX_REGISTERS_64, "80", "81", "82", "83", "84", "85", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16), CONVX_SUMS(v, 32), CONVX_SUMS(v, 48), CONVX_SUMS(v, 64))
#define CONVX_192_COLUMNS(define) \
  define(192, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16 ", " CONVX_REGISTERS_32 ", " CONVX_REGISTERS_48 ", " CONVX_REGISTERS_64 ", " CONVX_REGISTERS_80, "96", "97", "98", "99", "100", "101", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16), CONVX_SUMS(v, 32), CONVX_SUMS(v, 48), CONVX_SUMS(v, 64), CONVX_SUMS(v, 80))
#define CONVX_224_COLUMNS(define) \
  define(224, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16 ", " CONVX_REGISTERS_32 ", " CONVX_REGISTERS_48 ", " CONVX_REGISTERS_64 ", " CONVX_REGISTERS_80 ", " CONVX_REGISTERS_96, "112", "113", "114", "115", "116", "117", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16), CONVX_SUMS(v, 32), CONVX_SUMS(v, 48), CONVX_SUMS(v, 64), CONVX_SUMS(v, 80), CONVX_SUMS(v, 96))
#define CONVX_256_COLUMNS(define) \
  define(256, CONVX_REGISTERS_0 ", " CONVX_REGISTERS_16 ", " CONVX_REGISTERS_32 ", " CONVX_REGISTERS_48 ", " CONVX_REGISTERS_64 ", " CONVX_REGISTERS_80 ", " CONVX_REGISTERS_96 ", " CONVX_REGISTERS_112, "128", "129", "130", "131", "132", "133", CONVX_SUMS(v, 0), CONVX_SUMS(v, 16), CONVX_SUMS(v, 32), CONVX_SUMS(v, 48), CONVX_SUMS(v, 64), CONVX_SUMS(v, 80), CONVX_SUMS(v, 96), CONVX_SUMS(v, 112))
// Operand types: both operands K-major; A K-major and B N-major; both operands MN-major.
#define CONVX_DEFINE_K_MAJOR(columns, ...)                                             \
  CONVX_DEFINE_WGMMA(Tf32, columns, "k8.f32.tf32.tf32", "", "", __VA_ARGS__);          \
  CONVX_DEFINE_WGMMA(__half, columns, "k16.f32.f16.f16", ", 0", ", 0", __VA_ARGS__);   \
  CONVX_DEFINE_WGMMA(__nv_bfloat16, columns, "k16.f32.bf16.bf16", ", 0", ", 0", __VA_ARGS__);
#define CONVX_DEFINE_BY_COLUMNS(columns, ...)                                                     \
  CONVX_DEFINE_WGMMA(ByColumns<__half>, columns, "k16.f32.f16.f16", ", 0", ", 1", __VA_ARGS__);   \
  CONVX_DEFINE_WGMMA(ByColumns<__nv_bfloat16>, columns, "k16.f32.bf16.bf16", ", 0", ", 1", __VA_ARGS__);
#define CONVX_DEFINE_MN_MAJOR(columns, ...)                                                    \
  CONVX_DEFINE_WGMMA(MnMajor<__half>, columns, "k16.f32.f16.f16", ", 1", ", 1", __VA_ARGS__);  \
  CONVX_DEFINE_WGMMA(MnMajor<__nv_bfloat16>, columns, "k16.f32.bf16.bf16", ", 1", ", 1", __VA_ARGS__);
#define CONVX_DEFINE_MOST_COLUMNS(define)                                                    \
  CONVX_64_COLUMNS(define) CONVX_96_COLUMNS(define) CONVX_128_COLUMNS(define)                \
  CONVX_160_COLUMNS(define) CONVX_192_COLUMNS(define) CONVX_256_COLUMNS(define)
CONVX_DEFINE_MOST_COLUMNS(CONVX_DEFINE_K_MAJOR)
CONVX_DEFINE_MOST_COLUMNS(CONVX_DEFINE_BY_COLUMNS)
CONVX_DEFINE_MOST_COLUMNS(CONVX_DEFINE_MN_MAJOR)
CONVX_48_COLUMNS(CONVX_DEFINE_K_MAJOR)
CONVX_224_COLUMNS(CONVX_DEFINE_K_MAJOR)
CONVX_224_COLUMNS(CONVX_DEFINE_MN_MAJOR)
#undef CONVX_DEFINE_MOST_COLUMNS
#undef CONVX_DEFINE_K_MAJOR
#undef CONVX_DEFINE_BY_COLUMNS
#undef CONVX_48_COLUMNS
#undef CONVX_64_COLUMNS
#undef CONVX_96_COLUMNS
#undef CONVX_128_COLUMNS
#undef CONVX_160_COLUMNS
#undef CONVX_192_COLUMNS
#undef CONVX_224_COLUMNS
#undef CONVX_256_COLUMNS
#undef CONVX_DEFINE_MN_MAJOR
#undef CONVX_DEFINE_WGMMA
#undef CONVX_SUMS
#undef CONVX_8_SUMS
#undef CONVX_REGISTERS_0
#undef CONVX_REGISTERS_16
#undef CONVX_REGISTERS_16_TO_23
#undef CONVX_REGISTERS_32
#undef CONVX_REGISTERS_48
#undef CONVX_REGISTERS_64
#undef CONVX_REGISTERS_80
#undef CONVX_REGISTERS_96
#undef CONVX_REGISTERS_112
// clang-format on

}  // namespace convx
