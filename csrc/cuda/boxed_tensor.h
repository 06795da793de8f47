// A tensor that is read or stored by boxes, and what the copy engine is given of it. Plain data.
#pragma once

#include <cstdint>

namespace convx {

// As the driver encodes it; a parameter of kernels, not copied from there.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// What a tensor's values are. Those of kTf32 are float32, which are rounded on their way to shared
// memory as round_to_tf32 does on sm_90, not a number and infinity included.
enum class BoxValue : uint8_t { kTwoBytes, kFourBytes, kTf32 };
constexpr int value_bytes(BoxValue value) { return value == BoxValue::kTwoBytes ? 2 : 4; }

// A tensor of four axes, innermost first, whose values lie together along the first. Addresses and
// strides are multiples of 16 bytes. What a box has outside of it is zeros.
struct BoxedTensor {
  const void* base;
  int64_t extent[4];
  int64_t stride_bytes[3];  // of all axes but the first
  int box[4];               // values, at most 256 from the first to the last
  int step[4];              // of the tensor, from a value of the box to the next
  int swizzle_bytes;        // those of a box's first axis: 32, 64 or 128
  BoxValue value = BoxValue::kTwoBytes;
};

}  // namespace convx
