// Asynchronous copies: of a few bytes into shared memory, counted by barriers there (sm_80; the
// barriers' waiting side is in mbarrier.cuh), and of many bytes out of it (sm_90).
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

// Copies bytes (a multiple of 16, both addresses aligned to 16) from shared to global memory. What
// ordinary stores wrote must have been fenced, see fence_async_proxy. Its operands are registers of
// the whole warp: where the compiler cannot see that one lane calls (elect_lane), a copy takes a
// dozen instructions.
__device__ __forceinline__ void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}
// Those that this thread has started can be waited for.
__device__ __forceinline__ void commit_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Returns once all that this thread has committed have read their source, but for the last
// kPending times it did,
template <int kPending = 0>
__device__ __forceinline__ void wait_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// or are done.
__device__ __forceinline__ void wait_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

}  // namespace convx
