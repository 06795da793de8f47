#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "device/fast_divmod.cuh"
#include "engines/cuda_boxes/boxes_passes.h"
#include "engines/cuda_staging.h"

namespace convx {
namespace {

constexpr int kPadThreads = 256;
constexpr int kThreadUnits = 4;  // of 16 bytes, that a thread reads before it stores the first

// Distances in bytes.
struct PadParams {
  const char* source;
  uint4* padded;
  int64_t n, h, w;
  int pixel_bytes;
  int64_t units;
  FastDivmod by_units, by_columns, by_rows;
};

template <typename Piece>
__global__ void __launch_bounds__(kPadThreads)
    pad_source_kernel(const __grid_constant__ PadParams p) {
  constexpr int kPieces = 16 / sizeof(Piece);
  union Unit {
    uint4 all;
    Piece pieces[kPieces];
  };
  constexpr int kBlockUnits = kThreadUnits * kPadThreads;
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int64_t first = int64_t{blockIdx.x} * kBlockUnits + threadIdx.x; first < p.units;
       first += int64_t{gridDim.x} * kBlockUnits) {
    Unit units[kThreadUnits];
#pragma unroll
    for (int u = 0; u < kThreadUnits; ++u) {
      units[u].all = uint4{};
      const int64_t i = first + u * kPadThreads;
      if (i >= p.units) break;
      int image = static_cast<int>(i);
      const int byte = 16 * p.by_units.split(image);
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
      const int64_t i = first + u * kPadThreads;
      if (i < p.units) p.padded[i] = units[u].all;
    }
  }
}

}  // namespace

void pad_source(const LaunchSite& site, const SourcePadding& padding, const void* source,
                void* padded) {
  const int64_t size = padding.element_bytes;
  PadParams p{};
  p.source = static_cast<const char*>(source);
  p.padded = static_cast<uint4*>(padded);
  p.n = padding.from.n * size, p.h = padding.from.h * size, p.w = padding.from.w * size;
  p.pixel_bytes = static_cast<int>(padding.pixel_bytes);
  p.units = padding.bytes / 16;
  p.by_units = FastDivmod(padding.padded_bytes / 16);
  p.by_columns = FastDivmod(padding.columns);
  p.by_rows = FastDivmod(padding.rows);
  // The widest pieces that pixels and the address are multiples of.
  const int together = fit_unit_to_address(
      source, size,
      fit_unit(size, padding.pixel_bytes / size, padding.from.n, padding.from.h, padding.from.w));
  const int64_t piece_bytes = together * size;
  const dim3 grid(count_loop_blocks(p.units, kThreadUnits * kPadThreads));
  const auto launch = piece_bytes >= 8   ? launch_early<pad_source_kernel<uint2>, PadParams>
                      : piece_bytes == 4 ? launch_early<pad_source_kernel<uint32_t>, PadParams>
                                         : launch_early<pad_source_kernel<uint16_t>, PadParams>;
  launch(site, grid, kPadThreads, 0, p);
}

}  // namespace convx
