// Asynchronous copies: cp.async of a few bytes into shared memory, completed on an mbarrier (sm_80;
// mbarrier.cuh has the waiting side); bulk copies out of shared memory (sm_90); and TMA copies of
// boxes and pixels (planning/boxed_tensor.h) into shared memory, completed on an mbarrier, and of
// boxes out of it, completed like bulk copies (sm_90).
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

// Starts the copy of the box whose first value is at these coordinates, innermost axis first. They
// may lie outside of the tensor. map: in a kernel parameter. destination: aligned to 128 bytes.
__device__ __forceinline__ void box_copy(uint32_t destination, const void* map, int x0, int x1,
                                         int x2, int x3, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

// Starts the copy of consecutive pixels of a PixelTensor, from the pixel of its rectangle at
// (column, row, image) on. Each pixel is read (column_offset, row_offset) further.
__device__ __forceinline__ void pixel_copy(uint32_t destination, const void* map, int channel,
                                           int column, int row, int image, int column_offset,
                                           int row_offset, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], {%7, %8};\n" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image),
      "h"(static_cast<uint16_t>(column_offset)), "h"(static_cast<uint16_t>(row_offset))
      : "memory");
}

// Starts the copy of a box from shared to global memory. Values outside of the tensor are not
// written.
__device__ __forceinline__ void box_store(const void* map, int x0, int x1, int x2, int x3,
                                          uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];\n" ::"l"(map),
      "r"(source), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
      : "memory");
}

}  // namespace convx
