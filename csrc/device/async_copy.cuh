// Asynchronous copies of a few bytes, counted by barriers in shared memory (sm_80; the barriers'
// waiting side is in mbarrier.cuh).
#pragma once

#include <cstdint>

namespace convx {

// Copies 4, 8 or 16 bytes, or writes as many zeros; source must be readable either way.
template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t destination, const void* source, bool valid) {
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(destination), "l"(source),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// Arrives once all copies that this thread has started are done.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

}  // namespace convx
