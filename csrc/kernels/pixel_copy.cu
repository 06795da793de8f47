// The kernel behind copy_pixels:
//
//   copied[pixel][unit] = 16 bytes of the pixel, with zeros behind its last channel
//
// A thread copies kThreadUnits units per iteration of a grid-stride loop and starts all its loads
// before the first store. Loads are as wide as the source's alignment allows (Piece), stores have
// 16 bytes. No shared memory.
#include "kernels/pixel_copy.h"

#include "core/arithmetic.h"
#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "planning/staged_rows.h"

namespace convx {
namespace {

constexpr int kCopyThreads = 256;
constexpr int kThreadUnits = 4;  // units of 16 bytes that a thread loads before it stores them

// Strides are in bytes.
struct CopyParams {
  const char* source;
  uint4* copied;
  int64_t n, h, w;
  int first_pixel, pixel_bytes;
  int64_t units;
  FastDivmod by_units, by_columns, by_rows;
};

template <typename Piece>
__global__ void __launch_bounds__(kCopyThreads)
    copy_pixels_kernel(const __grid_constant__ CopyParams p) {
  constexpr int kPieces = 16 / sizeof(Piece);
  union Unit {
    uint4 all;
    Piece pieces[kPieces];
  };
  constexpr int kBlockUnits = kThreadUnits * kCopyThreads;
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int64_t first = int64_t{blockIdx.x} * kBlockUnits + threadIdx.x; first < p.units;
       first += int64_t{gridDim.x} * kBlockUnits) {
    Unit units[kThreadUnits];
#pragma unroll
    for (int u = 0; u < kThreadUnits; ++u) {
      units[u].all = uint4{};
      const int64_t i = first + u * kCopyThreads;
      if (i >= p.units) break;
      int image = static_cast<int>(i);
      const int byte = 16 * p.by_units.split(image);
      image += p.first_pixel;
      const int column = p.by_columns.split(image);
      const int row = p.by_rows.split(image);
      const char* from = p.source + image * p.n + row * p.h + column * p.w + byte;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        if (byte + j * static_cast<int>(sizeof(Piece)) < p.pixel_bytes) {
          units[u].pieces[j] = reinterpret_cast<const Piece*>(from)[j];
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kThreadUnits; ++u) {
      const int64_t i = first + u * kCopyThreads;
      if (i < p.units) p.copied[i] = units[u].all;
    }
  }
}

}  // namespace

void copy_pixels(const LaunchSite& site, const CopiedPixels& pixels) {
  const int64_t size = pixels.element_bytes;
  CopyParams p{};
  p.source = static_cast<const char*>(pixels.source);
  p.copied = static_cast<uint4*>(pixels.copied);
  p.n = pixels.n * size, p.h = pixels.h * size, p.w = pixels.w * size;
  p.first_pixel = static_cast<int>(pixels.first);
  p.pixel_bytes = static_cast<int>(pixels.pixel_bytes);
  p.units = pixels.bytes() / 16;
  p.by_units = FastDivmod(pixels.padded_bytes / 16);
  p.by_columns = FastDivmod(pixels.columns);
  p.by_rows = FastDivmod(pixels.rows);
  // The widest load that the pixels' size, strides and address allow.
  const int together = fit_unit_to_address(
      pixels.source, size, fit_unit(size, pixels.pixel_bytes / size, pixels.n, pixels.h, pixels.w));
  const Grid grid(count_loop_blocks(p.units, kThreadUnits * kCopyThreads));
  const auto launch_by = [&]<typename Piece>(Piece) {
    launch_early<copy_pixels_kernel<Piece>>(site, grid, kCopyThreads, 0, p);
  };
  switch (together * size) {
    case 16:
      return launch_by(uint4{});
    case 8:
      return launch_by(uint2{});
    case 4:
      return launch_by(uint32_t{});
    default:
      return launch_by(uint16_t{});
  }
}

}  // namespace convx
