// Copies pixels of a tensor with contiguous channels to a buffer in which every pixel starts at a
// multiple of 16 bytes. For engines that need a strided subset of the pixels, or aligned pixels.
#pragma once

#include <cstdint>

namespace convx {

struct LaunchSite;

// In a plan the two addresses are null.
struct CopiedPixels {
  const void* source = nullptr;
  void* copied = nullptr;  // [pixel][padded_bytes]
  int64_t element_bytes = 0;
  int64_t pixel_bytes = 0, padded_bytes = 0;  // a pixel without and with its zero padding
  int64_t rows = 0, columns = 0;              // pixels to copy of each image
  int64_t n = 0, h = 0, w = 0;                // source strides between them, in elements
  int64_t first = 0, count = 0;               // the range of [image][row][column] to copy

  int64_t bytes() const { return count * padded_bytes; }  // size of the buffer
};

void copy_pixels(const LaunchSite& site, const CopiedPixels& pixels);

}  // namespace convx
