// Asynchronous copies: cp.async of a few bytes into shared memory, completed on an mbarrier (sm_80;
// mbarrier.cuh has the waiting side), and bulk copies out of shared memory (sm_90).
#pragma once

#include <cstdint>

namespace convx {

// Copies 4, 8 or 16 bytes, or writes as many zeros if valid is false. source must be readable
// either way.
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

// Arrives at the barrier once all copies that this thread has started are complete.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Copies bytes (a multiple of 16, both addresses aligned to 16) from shared to global memory. Data
// written by ordinary stores must be fenced first, see fence_async_proxy. The instruction takes
// uniform registers: call it under elect_lane, where the compiler knows that one lane runs.
// Otherwise a copy takes a dozen instructions.
__device__ __forceinline__ void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}
// Commits the copies that this thread has started since the last commit as one group.
__device__ __forceinline__ void commit_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Waits until all groups of this thread, except for the last kPending ones, have read their source,
// so that shared memory can be reused.
template <int kPending = 0>
__device__ __forceinline__ void wait_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// Waits until all groups of this thread are complete, and their results are in global memory.
__device__ __forceinline__ void wait_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

}  // namespace convx
