// The inner loops of the CPU engines, compiled once per instruction set and chosen at run time.
//
// Acc is the type sums are kept in: float, or double for float64 tensors. Everything between
// loading and storing works on Acc: only load_rows, store_tile and the kernels named after channels
// know the storage type.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

// A strided rectangle of a tensor, to be copied into a dense scratch rectangle with a border of
// zeros. Strides in elements. Scratch rows lie pitch elements apart.
struct RowCopy {
  const void* source = nullptr;  // first element that is copied
  int64_t row_stride = 0;
  int64_t column_stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t rows_before = 0;
  int64_t rows_after = 0;
  int64_t columns_before = 0;
  int64_t columns_after = 0;
  int64_t pitch = 0;
};

// A run of neighbouring columns of a tile, all from one lattice row.
struct TileSegment {
  int64_t source;  // element offset of the run in staged data
  int64_t target;  // element offset of the run in the target tensor
  int32_t position;
  int32_t count;
};

// Where a finished tile [rows][pitch] goes.
struct TileStore {
  void* target = nullptr;
  const void* bias = nullptr;  // one storage element per row; may be null
  int64_t row_stride = 0;      // distances in the target, in elements
  int64_t column_stride = 0;
  const TileSegment* segments = nullptr;
  int64_t segment_count = 0;
  int64_t rows = 0;
  int64_t pitch = 0;
};

// The positions a dot product runs over: rows of full vectors, then `tail` more elements, where 0
// means none. Both operands keep their rows pitch elements apart.
struct DotRange {
  int64_t rows = 0;
  int64_t vectors = 0;
  int64_t tail = 0;
  int64_t pitch = 0;
};

// Pixels of a chunk: rows of x lie pitch elements apart, those of y follow each other.
struct PixelRange {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch = 0;
};

// A run of target pixels of a depthwise convolution, all reached by the same taps. Channels are
// neighbours in memory; offsets and strides in elements.
struct ChannelGather {
  const void* source = nullptr;
  const int64_t* source_offsets = nullptr;  // [taps]
  const void* weights = nullptr;            // in Acc
  const int64_t* weight_offsets = nullptr;  // [taps]
  const void* bias = nullptr;               // in the storage type; may be null
  void* target = nullptr;
  int64_t taps = 0;
  int64_t channels = 0;
  int64_t pixels = 0;
  int64_t source_stride = 0;  // between pixels
  int64_t target_stride = 0;
};

// Up to kMaxChannelTaps taps, evenly spaced in x, of a depthwise weight gradient, over a run of
// pixels that all of them reach: sums[tap][channel] += x * y.
struct ChannelDots {
  const void* x = nullptr;
  const void* y = nullptr;
  int64_t taps = 0;
  int64_t channels = 0;
  int64_t pixels = 0;
  int64_t x_stride = 0;  // between pixels
  int64_t y_stride = 0;
  int64_t tap_stride = 0;
  int64_t sums_pitch = 0;
};

constexpr int kMaxChannelTaps = 8;
constexpr int kMaxTileVectors = 4;
constexpr int kMaxTileColumns = 64;  // of any instruction set and type
constexpr int kMaxVectorLanes = 16;

template <typename Acc>
struct CpuKernels {
  int lanes;
  // Rows of the register tiles of 2 and of 4 vectors.
  int max_rows[2];
  // Columns of the dot tiles of 1, 2 and 4 rows.
  int max_dot_columns[3];
  // Vectors of the widest multiply_pixels tile, and rows of those of 1, 2 and that many vectors.
  int panel_vectors;
  int max_pixel_rows[3];

  // Copies and converts; out points at the first border element.
  void (*load_rows)(const RowCopy& copy, Acc* out);
  void (*store_tile)(const Acc* tile, const TileStore& store);

  // panel[k][position ...] = source[offsets[k] + segment.source ...] for every segment; positions
  // from the last segment's end to width become zero. Rows of the panel are width elements long.
  // May write lanes - 1 elements past the panel and read as many past a segment.
  void (*pack_panel)(const Acc* source, const int32_t* offsets, int64_t depth,
                     const TileSegment* segments, int64_t segment_count, int64_t width, Acc* panel);

  // tile[i][v * lanes + l] (+)= sum over k of a[k * rows + i] * b[v][offsets[k] + l], with rows of
  // the tile `vectors` vectors long. vectors is 2 or 4.
  void (*multiply_tile)(int rows, int vectors, int64_t depth, const Acc* a, const Acc* const* b,
                        const int32_t* offsets, bool accumulate, Acc* tile);

  // sums[i * sums_pitch + j] += sum over the range of y[i * y_stride + ...] * x[offsets[j] + ...].
  // rows is 1, 2 or 4. Operands must be readable, and need not be zero, behind the tail.
  void (*dot_tile)(int rows, int columns, const DotRange& range, const Acc* y, int64_t y_stride,
                   const Acc* x, const int32_t* offsets, Acc* sums, int64_t sums_pitch);

  // out[j][i] = in[i][j], rows and columns multiples of lanes.
  void (*transpose)(const Acc* in, int64_t in_pitch, int64_t rows, int64_t columns, Acc* out,
                    int64_t out_pitch);

  // sums[j * pitch + v * lanes + l] += sum over pixels (row, column) of
  //   x[offsets[j] + row * range.pitch + column] * y[(row * columns + column) * pitch + v * lanes
  //   + l]. vectors is 1, 2 or panel_vectors.
  void (*multiply_pixels)(int rows, int vectors, const PixelRange& range, const Acc* x,
                          const int32_t* offsets, const Acc* y, int64_t pitch, Acc* sums);

  void (*gather_channels)(const ChannelGather& gather);
  void (*dot_channels)(const ChannelDots& dots, Acc* sums);
};

struct CpuKernelTable {
  int simd_bytes;
  CpuKernels<float> float32;
  CpuKernels<float> float16;
  CpuKernels<float> bfloat16;
  CpuKernels<double> float64;
};

// The widest table this processor can run; the environment variable CONVX_SIMD_BYTES (16, 32 or
// 64), read once, lowers the choice.
const CpuKernelTable& cpu_kernel_table();

template <typename Acc>
const CpuKernels<Acc>& find_kernels(DType dtype);
template <>
const CpuKernels<float>& find_kernels<float>(DType dtype);
template <>
const CpuKernels<double>& find_kernels<double>(DType dtype);

// One per instruction set; those this architecture lacks are null.
const CpuKernelTable* baseline_kernels();
const CpuKernelTable* avx2_kernels();
const CpuKernelTable* avx512_kernels();

}  // namespace convx
