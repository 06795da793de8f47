// cp.async: asynchronous copies from global to shared memory (sm_80), with plain copies as a
// fallback.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/convert.cuh"
#include "device/memory.cuh"

namespace convx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define CONVX_HAS_CP_ASYNC 1
#else
#define CONVX_HAS_CP_ASYNC 0
#endif

// Copies one element, or writes zero if valid is false. source must be readable either way. The
// element has arrived after wait_copies and a barrier. 16-bit elements are widened to the
// accumulation type, which cp.async cannot do, so they go through registers.
template <typename T>
__device__ __forceinline__ void copy_element(accumulate_t<T>* destination, const T* source,
                                             bool valid) {
  using Acc = accumulate_t<T>;
#if CONVX_HAS_CP_ASYNC
  if constexpr (std::is_same_v<T, Acc>) {
    const uint32_t shared = shared_address(destination);
    const int bytes = valid ? static_cast<int>(sizeof(T)) : 0;  // the rest is filled with zeros
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(source),
                 "n"(sizeof(T)), "r"(bytes));
    return;
  }
#endif
  *destination = valid ? to_accumulate(*source) : Acc{0};
}

// Copies 16 bytes between addresses aligned to 16.
__device__ __forceinline__ void copy_16_bytes(void* destination, const void* source) {
#if CONVX_HAS_CP_ASYNC
  const uint32_t shared = shared_address(destination);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared), "l"(source));
#else
  *static_cast<uint4*>(destination) = *static_cast<const uint4*>(source);
#endif
}

// Copies 4, 8 or 16 bytes between addresses aligned to as many, or writes zeros if valid is false,
// in which case source is not read.
template <int kBytes>
__device__ __forceinline__ void copy_or_clear(void* destination, const void* source, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if CONVX_HAS_CP_ASYNC
  const uint32_t shared = shared_address(destination);
  const int bytes = valid ? kBytes : 0;  // the rest is filled with zeros
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(source),
                 "r"(bytes));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(source),
                 "n"(kBytes), "r"(bytes));
  }
#else
  using Word =
      std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, uint32_t> >;
  *static_cast<Word*>(destination) = valid ? *static_cast<const Word*>(source) : Word{};
#endif
}

// Calls visit with the number of elements of a unit as a compile-time constant.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_unit(int unit, const Visit& visit) {
  if constexpr (sizeof(T) == 2) {
    if (unit == 8) return visit(std::integral_constant<int, 8>{});
  }
  if (unit == 4) return visit(std::integral_constant<int, 4>{});
  if (unit == 2) return visit(std::integral_constant<int, 2>{});
  visit(std::integral_constant<int, 1>{});
}

// Starts the copy of a unit, or writes zeros if valid is false, in which case source is not read.
// A single 16-bit element goes through a register.
template <int kUnit, typename T>
__device__ __forceinline__ void copy_unit(T* destination, const T* source, bool valid) {
  constexpr int kBytes = kUnit * static_cast<int>(sizeof(T));
  if constexpr (kBytes >= 4) {
    copy_or_clear<kBytes>(destination, source, valid);
  } else {
    *destination = valid ? __ldg(source) : round_to<T>(0.0f);
  }
}

__device__ __forceinline__ void commit_copies() {
#if CONVX_HAS_CP_ASYNC
  asm volatile("cp.async.commit_group;\n" ::);
#endif
}

// Waits until at most kPending committed groups of this thread are still running.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
#if CONVX_HAS_CP_ASYNC
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
#endif
}

}  // namespace convx
