// Operand types of wgmma (wgmma.cuh), the swizzle of operands in shared memory, and their
// descriptors.
#pragma once

#include <cstdint>

namespace convx {

struct Tf32 {};  // 32-bit operands, of which the tensor cores read the upper 19 bits

// A is K-major, B is 16-bit and N-major: its columns are contiguous. B consists of tiles of 8 k by
// 16, 32 or 64 columns, [k][32, 64 or 128 bytes], swizzled by k like the rows of K-major operands.
template <typename Value>
struct ByColumns {};

// Both operands are 16-bit and MN-major: the rows of A and the columns of B are contiguous. Tiles
// are [k][32, 64 or 128 bytes], swizzled, which are 16, 32 or 64 rows or columns. Descriptors are
// made by lower_columns_descriptor and upper_descriptor.
template <typename Value>
struct MnMajor {};

// The swizzle that wgmma and TMA use for tiles [position][lane_bytes]: permutes 16-byte units
// within 1024 bytes at most: XOR of the unit's index with the address bits from 128 on. lane_bytes
// is 32, 64 or 128.
__device__ __forceinline__ uint32_t swizzle(uint32_t offset, uint32_t lane_bytes) {
  return offset ^ (((offset >> 7) & (lane_bytes / 16 - 1)) << 4);
}

// The upper half of an operand's descriptor. row_bytes is 32, 64 or 128, and so is the swizzle. The
// lower half is lower_descriptor of the first row's address. The hardware swizzles the final
// address, after it has added offsets, so the first row may be any row of a tile that starts at a
// multiple of 1024 bytes.
__host__ __device__ constexpr uint32_t upper_descriptor(int row_bytes) {
  const uint32_t swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  return static_cast<uint32_t>(8 * row_bytes / 16) | (swizzle << 30);
}

// Where an operand starts, in the units of descriptors. Addresses in a cluster hold the block's
// rank from bit 24 on, which the other fields of a descriptor must not see.
__device__ __forceinline__ uint32_t start_units(uint32_t shared_address) {
  return (shared_address & 0x3ffff) >> 4;
}

__device__ __forceinline__ uint32_t lower_descriptor(uint32_t shared_address) {
  return start_units(shared_address) | (1u << 16);
}

// For ByColumns and MnMajor. columns_distance: bytes from one tile of columns (or rows) to the
// next, the "leading" offset. depth_distance: bytes from 8 k to the next 8 k, the "stride" offset.
// An MMA with k = 16 reads two tiles along k.
__device__ __forceinline__ uint32_t lower_columns_descriptor(uint32_t shared_address,
                                                             uint32_t columns_distance) {
  return start_units(shared_address) | (columns_distance >> 4 << 16);
}
__host__ __device__ constexpr uint32_t upper_columns_descriptor(uint32_t depth_distance) {
  return (depth_distance >> 4) | (1u << 30);
}

__device__ __forceinline__ uint64_t join_descriptor(uint32_t lower, uint32_t upper) {
  return (static_cast<uint64_t>(upper) << 32) | lower;
}

}  // namespace convx
