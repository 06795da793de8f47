// Descriptions of tensors that TMA reads or stores, as boxes or as pixels (im2col mode), and which
// tensors it can. Plain data.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

// A tensor map as the driver encodes it. It is passed as a kernel parameter and must stay there.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

// The type of a tensor's values. kTf32: float32 values that TMA rounds as round_to_tf32 does on
// sm_90, including NaN and infinity.
enum class BoxValue : uint8_t { kTwoBytes, kFourBytes, kTf32 };
constexpr int value_bytes(BoxValue value) { return value == BoxValue::kTwoBytes ? 2 : 4; }

// A tensor with four axes, innermost first, contiguous along the first. The address and the strides
// are multiples of 16 bytes. Values of a box that lie outside of the tensor are read as zeros.
struct BoxedTensor {
  const void* base;
  int64_t extent[4];
  int64_t stride_bytes[3];  // strides of axes 1 to 3
  int box[4];               // values along each axis; at most 256 elements from first to last
  int step[4];              // elements of the tensor from one value of the box to the next
  int swizzle_bytes;        // bytes of the box's first axis: 32, 64 or 128; 0: no swizzle
  BoxValue value = BoxValue::kTwoBytes;
};

// The end of a PixelTensor's rectangle along an axis, relative to the end of the tensor, as the
// driver expects it.
constexpr int64_t find_upper_corner(int64_t first, int64_t count, int64_t step, int64_t extent) {
  return first + (count - 1) * step + 1 - extent;
}

// A tensor, channels innermost, that TMA reads in im2col mode: a copy takes consecutive
// pixels of a rectangle, row by row and image by image. The rectangle is the same in all images.
// Its pixels outside of the tensor are read as zeros. The address and the strides are multiples of
// 16 bytes.
struct PixelTensor {
  const void* base;
  int64_t extent[4];        // channels, columns, rows, images
  int64_t stride_bytes[3];  // strides of columns, rows, images
  int first[2];  // column and row of the rectangle's first pixel; negative in the padding
  int count[2];  // pixels of the rectangle along columns and rows
  int step[2];   // pixels of the tensor from one pixel of the rectangle to the next
  // Channels and pixels of one copy. Channels are 16, 32 or 64. Operands of MMAs are swizzled, with
  // rows as wide as the channels are; kFourBytes are not.
  int channels, pixels;
  BoxValue value = BoxValue::kTwoBytes;

  constexpr int swizzle_bytes() const {
    return value == BoxValue::kFourBytes ? 0 : value_bytes(value) * channels;
  }

  constexpr int64_t upper_corner(int axis) const {
    return find_upper_corner(first[axis], count[axis], step[axis], extent[axis + 1]);
  }
};

// Limits of a tensor map along each axis: the step between a box's elements, and the span from its
// first element to its last.
inline constexpr int64_t kMaxBoxStep = 8;
inline constexpr int64_t kMaxBoxSpan = 256;

// Limits of im2col mode along each axis: the corners of the rectangle, and how much further a copy
// may read each pixel, which must not be negative.
inline constexpr int64_t kMinPixelCorner = -128;
inline constexpr int64_t kMaxPixelCorner = 127;
inline constexpr int64_t kMaxPixelOffset = 255;

// True if a rectangle can be like this along an axis; see PixelTensor for the parameters.
constexpr bool fits_pixel_corners(int64_t first, int64_t count, int64_t step, int64_t extent) {
  const auto fits = [](int64_t corner) {
    return corner >= kMinPixelCorner && corner <= kMaxPixelCorner;
  };
  return step <= kMaxBoxStep && fits(first) && fits(find_upper_corner(first, count, step, extent));
}

// True if channels are contiguous, every stride is a multiple of 16 bytes, and pixels, rows and
// images do not overlap.
inline bool has_boxes(const Strides& strides, int64_t channels, int64_t element_bytes) {
  const int64_t unit = 16 / element_bytes;
  return strides.c == 1 && strides.w % unit == 0 && strides.h % unit == 0 &&
         strides.n % unit == 0 && strides.w >= channels && strides.h >= strides.w &&
         strides.n >= strides.h;
}

}  // namespace convx
