// Pixels of a tensor whose channels lie together, copied to where each begins at a multiple of 16
// bytes: for engines that want some of a tensor's pixels, or pixels with another distance.
#pragma once

#include <cstdint>

#include "cuda/check.h"

namespace convx {

struct CopiedPixels {
  const void* source;
  void* copied;  // [pixel][padded_bytes]
  int64_t element_bytes;
  int64_t pixel_bytes, padded_bytes;  // of a pixel: without and with what follows it, zeros
  int64_t rows, columns;              // of an image
  int64_t n, h, w;                    // elements from a pixel that is wanted to the next
  int64_t first, count;               // which of [image][row][column]
};

void copy_pixels(const LaunchSite& site, const CopiedPixels& copy);

}  // namespace convx
