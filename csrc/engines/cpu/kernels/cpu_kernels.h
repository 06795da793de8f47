// The inner loops of the CPU engines, compiled once per instruction set and chosen at run time.
//
// Acc is the type of the accumulators: float, or double for float64 tensors. Only load_rows,
// store_tile and the kernels named after channels know the storage type; all others work on Acc.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

// A copy of a strided rectangle of a tensor into a dense scratch rectangle with a border of zeros.
// Strides are in elements. Scratch rows are `pitch` elements apart.
struct RowCopy {
  const void* source = nullptr;  // first element to copy
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
  int64_t source;  // offset of the run in the staged data, in elements
  int64_t target;  // offset of the run in the target tensor, in elements
  int32_t position;
  int32_t count;
};

// The destination of a finished tile [rows][pitch], or [position][pitch] if rows_are_contiguous.
struct TileStore {
  void* target = nullptr;
  const void* bias = nullptr;      // one element of the storage type per row; may be null
  const void* residual = nullptr;  // what is added at `target`, with its strides; may be null
  Epilogue epilogue;
  int64_t row_stride = 0;  // strides of the target, in elements
  int64_t column_stride = 0;
  const TileSegment* segments = nullptr;
  int64_t segment_count = 0;
  int64_t rows = 0;
  int64_t pitch = 0;
  bool rows_are_contiguous = false;  // the rows of a position follow each other in the tile
};

// The range of a dot product: rows of full vectors, each followed by `tail` elements (0: none). The
// rows of both operands are `pitch` elements apart.
struct DotRange {
  int64_t rows = 0;
  int64_t vectors = 0;
  int64_t tail = 0;
  int64_t pitch = 0;
};

// The pixels of a chunk. Rows of the staged image are `pitch` elements apart; those of y or of the
// sums are contiguous.
struct PixelRange {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch = 0;
};

// A run of target pixels of a depthwise convolution, all reached by the same taps. Channels are
// contiguous; offsets and strides are in elements.
struct ChannelGather {
  const void* source = nullptr;
  const int64_t* source_offsets = nullptr;  // [taps]
  const void* weights = nullptr;            // in Acc
  const int64_t* weight_offsets = nullptr;  // [taps]
  const void* bias = nullptr;               // in the storage type; may be null
  void* target = nullptr;
  const void* residual = nullptr;  // what is added at `target`, with its strides; may be null
  Epilogue epilogue;
  int64_t taps = 0;
  int64_t channels = 0;
  int64_t pixels = 0;
  int64_t source_stride = 0;  // between pixels
  int64_t target_stride = 0;
};

// Up to kMaxChannelTaps taps of a depthwise weight gradient, evenly spaced in x, over a run of
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
constexpr int kMaxTileColumns = 64;  // for any instruction set and type
constexpr int kMaxVectorLanes = 16;
constexpr int kPixelsAhead = 16;  // prefetch distance of multiply_run: the next runs read them

// Terms of a sum that are computed: `blocks` times the first `length` of `step` neighbouring terms.
struct TermBlocks {
  int64_t blocks, length, step;
};

template <typename Acc>
struct CpuKernels {
  int lanes;
  // Maximum rows of the register tiles with 2 and with 4 vectors.
  int max_rows[2];
  // Maximum columns of the dot tiles with 1, 2 and 4 rows.
  int max_dot_columns[3];
  // Vectors of the widest multiply_run and multiply_pixels tiles, and the most pixels or rows with
  // 1, 2 and that many vectors.
  int panel_vectors;
  int max_run_pixels[3];
  int max_pixel_rows[3];

  // Copies and converts. `out` points to the first border element.
  void (*load_rows)(const RowCopy& copy, Acc* out);
  void (*store_tile)(Acc* tile, const TileStore& store);  // may overwrite the tile

  // panel[k][position ...] = source[offsets[k] + segment.source ...] for every segment. Positions
  // from the end of the last segment to width become zero. Rows of the panel have width elements.
  // May write lanes - 1 elements past the panel and read as many past a segment.
  void (*pack_panel)(const Acc* source, const int32_t* offsets, int64_t depth,
                     const TileSegment* segments, int64_t segment_count, int64_t width, Acc* panel);

  // tile[i][v * lanes + l] (+)= sum over k of a[k * rows + i] * b[v][offsets[k] + l], where a row
  // of the tile has `vectors` vectors, 2 or 4. Adds to the tile if `accumulate` is set.
  void (*multiply_tile)(int rows, int vectors, int64_t depth, const Acc* a, const Acc* const* b,
                        const int32_t* offsets, bool accumulate, Acc* tile);

  // sums[i][v * lanes + l] (+)= sum over the terms k of
  //   weights[(k * vectors + v) * lanes + l] * source[offsets[k] + i]   for each of the pixels i.
  // vectors is 1, 2 or panel_vectors. Adds to the sums if `accumulate` is set.
  void (*multiply_run)(int pixels, int vectors, const TermBlocks& terms, const Acc* weights,
                       const Acc* source, const int32_t* offsets, bool accumulate, Acc* sums);

  // sums[i * columns + j] = sum over k of weights[k] * source[offsets[k] + i * pitch + j] for the
  // rows i and columns j of the range. May write 4 vectors past the sums and read as many past a
  // row.
  void (*multiply_plane)(const PixelRange& range, int64_t depth, const Acc* weights,
                         const Acc* source, const int32_t* offsets, Acc* sums);

  // sums[i * sums_pitch + j] += sum over the range of y[i * y_stride + ...] * x[offsets[j] + ...].
  // rows is 1, 2 or 4. Operands must be readable behind the tail, with any values.
  void (*dot_tile)(int rows, int columns, const DotRange& range, const Acc* y, int64_t y_stride,
                   const Acc* x, const int32_t* offsets, Acc* sums, int64_t sums_pitch);

  // out[j][i] = in[i][j]. rows and columns are multiples of lanes.
  void (*transpose)(const Acc* in, int64_t in_pitch, int64_t rows, int64_t columns, Acc* out,
                    int64_t out_pitch);

  // sums[j * pitch + v * lanes + l] += sum over pixels (row, column) of
  //   x[offsets[j] + row * range.pitch + column] *
  //   y[(row * columns + column) * pitch + v * lanes + l].
  // vectors is 1, 2 or panel_vectors.
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

// Returns the widest table that this processor can run. The environment variable CONVX_SIMD_BYTES
// (16, 32 or 64), read once, limits the choice.
const CpuKernelTable& cpu_kernel_table();

template <typename Acc>
const CpuKernels<Acc>& find_kernels(DType dtype);
template <>
const CpuKernels<float>& find_kernels<float>(DType dtype);
template <>
const CpuKernels<double>& find_kernels<double>(DType dtype);

// The tables of wider instruction sets; null if this architecture lacks them.
const CpuKernelTable* avx2_kernels();
const CpuKernelTable* avx512_kernels();

}  // namespace convx
