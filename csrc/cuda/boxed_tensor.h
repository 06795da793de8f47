// Tensors that TMA reads or stores by boxes or by pixels, and what it is given of them. Plain data.
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

// A 16-bit tensor, channels innermost, that TMA reads in im2col mode: a copy takes consecutive
// pixels, row by row and image by image, of a rectangle that is the same in all images. Pixels of
// the rectangle that lie outside of the tensor are zeros. Addresses and strides are multiples of 16
// bytes.
struct PixelTensor {
  const void* base;
  int64_t extent[4];        // channels, columns, rows, images
  int64_t stride_bytes[3];  // of columns, rows, images
  int first[2];             // column and row of the rectangle's first pixel; negative in a border
  int count[2];             // pixels of the rectangle along columns and rows,
  int step[2];              // and the tensor's pixels from one to the next
  int channels, pixels;  // of a copy; channels are 16, 32 or 64, swizzled as so many bytes times 2

  // Where the rectangle ends, counted from the end of the tensor, as the driver wants it.
  constexpr int64_t upper_corner(int axis) const {
    return first[axis] + int64_t{count[axis] - 1} * step[axis] + 1 - extent[axis + 1];
  }
};

// What the driver takes as corners of a PixelTensor's rectangle.
inline constexpr int64_t kMinPixelCorner = -128;
inline constexpr int64_t kMaxPixelCorner = 127;

}  // namespace convx
