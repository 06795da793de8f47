// TMA copies of boxes and pixels (planning/boxed_tensor.h) into shared memory, completed on an
// mbarrier (mbarrier.cuh), and of boxes out of it, completed like bulk copies (async_copy.cuh).
// sm_90.
#pragma once

#include <cstdint>

namespace convx {

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
