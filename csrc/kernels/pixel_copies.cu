// The kernels behind copy_pixels:
//
//   copied[pixel][unit] = 16 bytes of the pixel, with zeros behind its last channel
//
// A thread copies kThreadUnits units per iteration of a grid-stride loop and starts all its loads
// before the first store. Loads are as wide as the source's alignment allows (Piece), stores have
// 16 bytes. No shared memory.
//
// The kernels behind gather_pixels and scatter_pixels: a block transposes 64 pixels of 128 bytes of
// channels through shared memory.
//
//     planes  32 lanes have 32 neighbouring pixels of a channel
//     tile    [64 pixels][32 words + 1]   a word has one channel of 4 bytes, or two of 2 bytes
//     pixels  8 lanes have the 128 bytes of a pixel, 16 bytes each
//
// The pitch of 33 words spreads both orders over all banks. A thread starts all its loads before it
// stores the first value.
#include "kernels/pixel_copies.h"

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

namespace {

constexpr int kTransposeThreads = 256;
constexpr int kTilePixels = 64;
constexpr int kTileWords = 32;
constexpr int kTilePitch = kTileWords + 1;
constexpr int kWarps = kTransposeThreads / 32;

struct PlaneCopyParams {
  char* planes;
  char* pixels;
  int64_t pixel_bytes;
  Strides strides;
  int channels, pixel_count;
  FastDivmod by_word_tiles, by_columns, by_rows;
};

// What a block copies, and where its threads find the planes.
struct PlaneTile {
  int first_pixel, first_word;

  __device__ __forceinline__ explicit PlaneTile(const PlaneCopyParams& p) {
    int block = static_cast<int>(blockIdx.x);
    first_word = p.by_word_tiles.split(block) * kTileWords;
    first_pixel = block * kTilePixels;
  }

  // Offset of a pixel within the planes, in elements, or -1 past the last pixel.
  __device__ __forceinline__ int64_t locate(const PlaneCopyParams& p, int pixel) const {
    int image = first_pixel + pixel;
    if (image >= p.pixel_count) return -1;
    const int column = p.by_columns.split(image);
    const int row = p.by_rows.split(image);
    return image * p.strides.n + row * p.strides.h + column * p.strides.w;
  }
};

// Calls visit(half of the pixels, round, word of the tile, pixel of the tile) for the words of this
// thread. Neighbouring lanes have neighbouring pixels.
template <typename Visit>
__device__ __forceinline__ void visit_words(const Visit& visit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int half = 0; half < kTilePixels / 32; ++half) {
#pragma unroll
    for (int round = 0; round < kTileWords / kWarps; ++round) {
      visit(half, round, warp + round * kWarps, half * 32 + lane);
    }
  }
}

// Calls visit(number, 16-byte unit of a pixel, pixel of the tile) for the units of this thread.
// Neighbouring lanes have neighbouring units.
template <typename Visit>
__device__ __forceinline__ void visit_units(const Visit& visit) {
  constexpr int kUnits = kTileWords / 4;
#pragma unroll
  for (int i = 0; i < kTilePixels * kUnits / kTransposeThreads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kTransposeThreads;
    visit(i, index % kUnits, index / kUnits);
  }
}

}  // namespace

template <typename Element>
__global__ void __launch_bounds__(kTransposeThreads)
    gather_pixels_kernel(const __grid_constant__ PlaneCopyParams p) {
  constexpr int kValues = 4 / sizeof(Element);  // per word
  extern __shared__ __align__(16) char memory[];
  uint32_t* const tile = reinterpret_cast<uint32_t*>(memory);
  wait_for_kernels_before();
  let_next_kernel_start();
  const PlaneTile at(p);
  const int lane = threadIdx.x % 32;
  const int64_t offsets[2] = {at.locate(p, lane), at.locate(p, 32 + lane)};
  Element values[kTilePixels / 32][kTileWords / kWarps][kValues];
  visit_words([&](int half, int round, int word, int) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      const int channel = (at.first_word + word) * kValues + v;
      const bool exists = offsets[half] >= 0 && channel < p.channels;
      values[half][round][v] =
          exists ? reinterpret_cast<const Element*>(p.planes)[offsets[half] + channel * p.strides.c]
                 : Element{0};
    }
  });
  visit_words([&](int half, int round, int word, int pixel) {
    uint32_t bits = values[half][round][0];
    if constexpr (kValues == 2) bits |= static_cast<uint32_t>(values[half][round][1]) << 16;
    tile[pixel * kTilePitch + word] = bits;
  });
  __syncthreads();
  visit_units([&](int, int unit, int pixel) {
    const int64_t byte = 4 * at.first_word + 16 * unit;
    if (byte >= p.pixel_bytes || at.first_pixel + pixel >= p.pixel_count) return;
    const uint32_t* const from = tile + pixel * kTilePitch + 4 * unit;
    *reinterpret_cast<uint4*>(p.pixels + (at.first_pixel + pixel) * p.pixel_bytes + byte) =
        make_uint4(from[0], from[1], from[2], from[3]);
  });
}

template <typename Element>
__global__ void __launch_bounds__(kTransposeThreads)
    scatter_pixels_kernel(const __grid_constant__ PlaneCopyParams p) {
  constexpr int kValues = 4 / sizeof(Element);
  extern __shared__ __align__(16) char memory[];
  uint32_t* const tile = reinterpret_cast<uint32_t*>(memory);
  wait_for_kernels_before();
  let_next_kernel_start();
  const PlaneTile at(p);
  uint4 units[kTilePixels * kTileWords / 4 / kTransposeThreads];
  visit_units([&](int i, int unit, int pixel) {
    const int64_t byte = 4 * at.first_word + 16 * unit;
    const bool exists = byte < p.pixel_bytes && at.first_pixel + pixel < p.pixel_count;
    units[i] = exists ? *reinterpret_cast<const uint4*>(
                            p.pixels + (at.first_pixel + pixel) * p.pixel_bytes + byte)
                      : uint4{};
  });
  visit_units([&](int i, int unit, int pixel) {
    uint32_t* const to = tile + pixel * kTilePitch + 4 * unit;
    to[0] = units[i].x, to[1] = units[i].y, to[2] = units[i].z, to[3] = units[i].w;
  });
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int64_t offsets[2] = {at.locate(p, lane), at.locate(p, 32 + lane)};
  visit_words([&](int half, int, int word, int pixel) {
    const uint32_t bits = tile[pixel * kTilePitch + word];
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      const int channel = (at.first_word + word) * kValues + v;
      if (offsets[half] < 0 || channel >= p.channels) continue;
      reinterpret_cast<Element*>(p.planes)[offsets[half] + channel * p.strides.c] =
          static_cast<Element>(bits >> 16 * v);
    }
  });
}

namespace {

// Calls launch with the element type, the grid and the parameters.
template <typename Launch>
void visit_copy(const PlaneCopy& copy, const Launch& launch) {
  const int64_t count = copy.images * copy.rows * copy.columns;
  const int64_t word_tiles = ceil_div(copy.pixel_bytes, int64_t{4} * kTileWords);
  const PlaneCopyParams params{.planes = static_cast<char*>(copy.planes),
                               .pixels = static_cast<char*>(copy.pixels),
                               .pixel_bytes = copy.pixel_bytes,
                               .strides = copy.strides,
                               .channels = static_cast<int>(copy.channels),
                               .pixel_count = static_cast<int>(count),
                               .by_word_tiles = FastDivmod(word_tiles),
                               .by_columns = FastDivmod(copy.columns),
                               .by_rows = FastDivmod(copy.rows)};
  const Grid grid(ceil_div(count, int64_t{kTilePixels}) * word_tiles);
  if (copy.element_bytes == 2) return launch(uint16_t{}, grid, params);
  launch(uint32_t{}, grid, params);
}

constexpr size_t kTileBytes = 4 * kTilePixels * kTilePitch;

}  // namespace

void gather_pixels(const LaunchSite& site, const PlaneCopy& copy) {
  visit_copy(copy, [&]<typename Element>(Element, const Grid& grid, const PlaneCopyParams& params) {
    launch_early<gather_pixels_kernel<Element>>(site, grid, kTransposeThreads, kTileBytes, params);
  });
}

void scatter_pixels(const LaunchSite& site, const PlaneCopy& copy) {
  visit_copy(copy, [&]<typename Element>(Element, const Grid& grid, const PlaneCopyParams& params) {
    launch_early<scatter_pixels_kernel<Element>>(site, grid, kTransposeThreads, kTileBytes, params);
  });
}

}  // namespace convx
