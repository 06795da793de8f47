// Asynchronous copies: of a few bytes, counted by barriers in shared memory (sm_80; the barriers'
// waiting side is in mbarrier.cuh), and of rows from shared to global memory (sm_90).
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

// Copies a row (a multiple of 16 bytes, both addresses aligned to 16) to global memory. Whoever has
// written it by ordinary stores must have passed fence_async_proxy and a barrier.
__device__ __forceinline__ void bulk_store(void* global, uint32_t shared_address, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global),
               "r"(shared_address), "r"(bytes)
               : "memory");
}

// The thread's bulk stores since the last commit become a group.
__device__ __forceinline__ void commit_bulk() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

// Waits until shared memory has been read by all but the thread's last kPending groups: it may be
// written again.
template <int kPending>
__device__ __forceinline__ void wait_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// The same until they are done.
template <int kPending>
__device__ __forceinline__ void wait_bulk() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace convx
