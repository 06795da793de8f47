// Pixels of a tensor whose channels lie together, copied to where each begins at a multiple of 16
// bytes: for engines that want some of a tensor's pixels, or pixels with another distance.
#pragma once

#include <cstdint>

namespace convx {

struct LaunchSite;

// A plan has it without its addresses.
struct CopiedPixels {
  const void* source = nullptr;
  void* copied = nullptr;  // [pixel][padded_bytes]
  int64_t element_bytes = 0;
  int64_t pixel_bytes = 0, padded_bytes = 0;  // of a pixel: without and with the zeros behind it
  int64_t rows = 0, columns = 0;              // of an image
  int64_t n = 0, h = 0, w = 0;                // elements from a pixel that is wanted to the next
  int64_t first = 0, count = 0;               // which of [image][row][column]

  int64_t bytes() const { return count * padded_bytes; }  // of the copy
};

void copy_pixels(const LaunchSite& site, const CopiedPixels& pixels);

}  // namespace convx
