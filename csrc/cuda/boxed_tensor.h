// A tensor that is read or stored by boxes, and what the copy engine is given of it. Plain data.
#pragma once

#include <cstdint>

namespace convx {

// As the driver encodes it; a parameter of kernels, not copied from there.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// A tensor of four axes, innermost first, of 16-bit values that lie together along the first.
// Addresses and strides are multiples of 16 bytes. What a box has outside of it is zeros.
struct BoxedTensor {
  const void* base;
  int64_t extent[4];
  int64_t stride_bytes[3];  // of all axes but the first
  int box[4];               // values, at most 256 from the first to the last
  int step[4];              // of the tensor, from a value of the box to the next
  int swizzle_bytes;        // those of a box's first axis: 32, 64 or 128
};

}  // namespace convx
