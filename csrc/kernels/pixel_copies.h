// Copies of pixels, for engines that read and write whole pixels only: aligned copies of pixels
// with contiguous channels, and copies between planes (NCHW) and pixels (channels_last).
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

struct LaunchSite;

// Pixels of a tensor with contiguous channels, copied to a buffer in which every pixel starts at a
// multiple of 16 bytes: for engines that need a strided subset of the pixels, or aligned pixels. In
// a plan the two addresses are null.
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

// Planes and the pixels that they are copied to, or from. In a plan the two addresses are null.
struct PlaneCopy {
  void* planes = nullptr;  // the caller's tensor
  void* pixels = nullptr;  // [image][row][column][pixel_bytes]
  int64_t element_bytes = 0;
  int64_t channels = 0, pixel_bytes = 0;  // pixel_bytes is a multiple of 16
  int64_t images = 0, rows = 0, columns = 0;
  Strides strides{};  // of the planes, in elements

  bool exists() const { return images > 0; }
  int64_t bytes() const { return images * rows * columns * pixel_bytes; }  // of all pixels
};

// Planes to pixels, with zeros behind the last channel.
void gather_pixels(const LaunchSite& site, const PlaneCopy& copy);
// Pixels to planes.
void scatter_pixels(const LaunchSite& site, const PlaneCopy& copy);

}  // namespace convx
