// How the columns (pixels) of a gather's matrix product are cut into register tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engines/cpu/driver/staging.h"
#include "engines/cpu/kernels/cpu_kernels.h"

namespace convx {

// The columns of the matrix product are computed in register tiles. Columns of a tile are
//   packed:   lattice points in order, without gaps;
//   in place: positions of the staged image, either one run through all rows including the halo, or
//             vector by vector within each row, whichever needs fewer vectors.
struct ColumnTiling {
  bool packed;
  bool by_row;
  int64_t rows, columns, pitch;
  int lanes, vectors;
  int64_t tiles;

  int64_t width() const { return int64_t{lanes} * vectors; }
};

inline ColumnTiling make_tiling(bool packed, const LatticeChunk& chunk, int64_t pitch, int lanes,
                                int vectors) {
  ColumnTiling t{packed, false, chunk.rows, chunk.columns, pitch, lanes, vectors, 0};
  int64_t in_vectors = ceil_div(chunk.rows * chunk.columns, lanes);
  if (!packed) {
    const int64_t by_row = chunk.rows * ceil_div(chunk.columns, lanes);
    in_vectors = ceil_div((chunk.rows - 1) * pitch + chunk.columns, lanes);
    t.by_row = by_row <= in_vectors;
    in_vectors = std::min(in_vectors, by_row);
  }
  t.tiles = ceil_div(in_vectors, vectors);
  return t;
}

struct TileColumns {
  int64_t vector_start[kMaxTileVectors];  // staged positions, in place only
  TileSegment segments[kMaxTileColumns];
  int64_t segment_count;
};

inline void add_segment(TileColumns& out, const ColumnTiling& t, int64_t row, int64_t column,
                        int64_t position, int64_t count, int64_t row_stride,
                        int64_t column_stride) {
  out.segments[out.segment_count++] = {row * t.pitch + column,
                                       row * row_stride + column * column_stride,
                                       static_cast<int32_t>(position), static_cast<int32_t>(count)};
}

// row_stride and column_stride lead from one lattice point to the next in the target tensor.
inline void describe_tile(const ColumnTiling& t, int64_t tile, int64_t row_stride,
                          int64_t column_stride, TileColumns& out) {
  out.segment_count = 0;
  if (t.by_row) {
    const int64_t per_row = ceil_div(t.columns, t.lanes);
    for (int v = 0; v < t.vectors; ++v) {
      const int64_t index = tile * t.vectors + v;
      const int64_t row = index / per_row, column = index % per_row * t.lanes;
      out.vector_start[v] = row < t.rows ? row * t.pitch + column : 0;
      if (row >= t.rows) continue;
      add_segment(out, t, row, column, int64_t{v} * t.lanes,
                  std::min<int64_t>(t.lanes, t.columns - column), row_stride, column_stride);
    }
    return;
  }
  const int64_t row_length = t.packed ? t.columns : t.pitch;
  const int64_t first = tile * t.width();
  const int64_t last = std::min(first + t.width(), (t.rows - 1) * row_length + t.columns);
  for (int v = 0; v < t.vectors; ++v) out.vector_start[v] = first + int64_t{v} * t.lanes;
  int64_t row = first / row_length, column = first % row_length;
  for (int64_t at = first; at < last; ++row, column = 0) {
    const int64_t count = std::min(t.columns - column, last - at);
    if (count > 0) {
      add_segment(out, t, row, column, at - first, count, row_stride, column_stride);
    }
    at += row_length - column;
  }
}

}  // namespace convx
