// Copies between planes (NCHW) and pixels (channels_last), for engines that read and write pixels
// only.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

struct LaunchSite;

// In a plan the two addresses are null.
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
