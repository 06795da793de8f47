// How the columns (pixels) of a gather's matrix product are cut into register tiles.
#pragma once

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

ColumnTiling make_tiling(bool packed, const LatticeChunk& chunk, int64_t pitch, int lanes,
                         int vectors);

struct TileColumns {
  int64_t vector_start[kMaxTileVectors];  // staged positions, in place only
  TileSegment segments[kMaxTileColumns];
  int64_t segment_count;
};

// row_stride and column_stride lead from one lattice point to the next in the target tensor.
void describe_tile(const ColumnTiling& t, int64_t tile, int64_t row_stride, int64_t column_stride,
                   TileColumns& out);

}  // namespace convx
