// Epilogue of the plane kernel: outputs go to shared memory and from there to global memory in
// chunks of 16 bytes.
//
// Rows of outputs rarely begin at a multiple of 16 bytes, but the rows of a tile are contiguous in
// global memory. So they are collected in shared memory with the same offset within 16 bytes, and
// only the two ends of such a span are stored element by element.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/depthwise/depthwise_geometry.h"

namespace convx {

// The accumulators of a thread.
template <typename T>
using PlaneAccumulators = float[kPlaneRows][kPlaneColumns<T>];

// The cell of a thread within the tile.
struct PlaneCell {
  int plane;
  int row_lane, row;        // outputs (row + j) * lanes + row_lane of the tile
  int column_lane, column;  // outputs (column + x) * lanes + column_lane of the tile
};

// The part of the problem that a block computes.
struct PlaneBlock {
  int first_plane, planes;  // planes counts only existing ones
  int first_row, rows;      // output rows
  int first_lattice_column;
  int first_column, columns;  // output columns
  int first_filter, last_filter;
};

__device__ inline PlaneBlock locate_plane_block(const PlaneParams& p) {
  PlaneBlock block;
  int index = blockIdx.x;
  block.first_filter = p.by_shares.split(index) * p.filters_per_share;
  block.last_filter = min(block.first_filter + p.filters_per_share, p.t.multiplier);
  block.first_lattice_column = p.by_column_tiles.split(index) * p.tile_cols - p.column_shift;
  const int end_column = (block.first_lattice_column + p.tile_cols) * p.t.column.lanes;
  block.first_column = max(0, block.first_lattice_column * p.t.column.lanes);
  block.columns = min(end_column, p.t.column.count) - block.first_column;
  block.first_row = p.by_row_tiles.split(index) * p.tile_rows * p.t.row.lanes;
  block.rows = min(p.tile_rows * p.t.row.lanes, p.t.row.count - block.first_row);
  block.first_plane = index * p.tile_planes;
  block.planes = min(p.tile_planes, p.planes - block.first_plane);
  return block;
}

// Start of the outputs of a plane of the tile, in elements, in the target and in shared memory.
struct PlaneStart {
  int64_t target;
  int shared;
};

template <typename T>
__device__ inline PlaneStart locate_plane(const PlaneParams& p, const PlaneBlock& block, int filter,
                                          int plane) {
  constexpr unsigned kChunk = 16 / sizeof(T);
  // If planes are stored together, they are contiguous after the first.
  const int leader = p.planes_together ? 0 : plane;
  int image = block.first_plane + leader;
  const int channel = p.by_channels.split(image);
  PlaneStart start;
  start.target = image * p.t.target_n +
                 (int64_t{channel} * p.t.multiplier + filter) * p.t.target_c +
                 int64_t{block.first_row} * p.t.target_h + block.first_column;
  const auto address = reinterpret_cast<uintptr_t>(p.t.target) / sizeof(T);
  const unsigned phase =
      (static_cast<unsigned>(address) + static_cast<unsigned>(start.target)) % kChunk;
  start.shared = static_cast<int>(phase);
  if (p.planes_together) {
    start.target += int64_t{plane} * p.t.target_c;
    start.shared += plane * p.t.row.count * p.t.column.count;
  } else if (!p.rows_apart) {
    start.shared += plane * p.span_pitch;
  }
  return start;
}

// Start of a row that is its own span, in elements from the first span. `start` is the plane's.
template <typename T>
__device__ inline int locate_row(const PlaneParams& p, int start, int plane, int row) {
  constexpr int kChunk = 16 / sizeof(T);
  return (plane * p.tile_rows * p.t.row.lanes + row) * p.span_pitch +
         (start + row * p.t.column.count) % kChunk;
}

// Stores a thread's outputs of one row, without columns outside the tile. kSideBySide: the columns
// are contiguous, so that one address serves all.
template <typename T, bool kSideBySide>
struct ResultRow {
  static constexpr int kColumns = kPlaneColumns<T>;
  // Lanes that are eight apart would hit the same bank with every 32-bit store, so they begin with
  // different columns.
  static constexpr bool kRotates = sizeof(T) == 4;
  int rotate, lanes;
  T* to[kRotates ? kColumns : 1];
  bool valid[kColumns];

  // q is the first of the columns, counted from the tile's first, which lies at `row`.
  __device__ __forceinline__ ResultRow(T* row, int q, int column_lanes, int columns)
      : rotate(threadIdx.x / 8 % 4), lanes(column_lanes) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = q + (kRotates ? (i + rotate) % 4 : i) * lanes;
      if (kRotates || i == 0) to[i] = row + column;
      valid[i] = static_cast<unsigned>(column) < static_cast<unsigned>(columns);
    }
  }

  __device__ __forceinline__ void move(int step) {
#pragma unroll
    for (T*& pointer : to) pointer += step;
  }

  __device__ __forceinline__ void store(const float (&sum)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if constexpr (kRotates) {
        const float low = rotate & 1 ? sum[(i + 1) % 4] : sum[i];
        const float high = rotate & 1 ? sum[(i + 3) % 4] : sum[(i + 2) % 4];
        if (valid[i]) *to[i] = rotate & 2 ? high : low;
      } else {
        if (valid[i]) to[0][kSideBySide ? i : i * lanes] = round_to<T>(sum[i]);
      }
    }
  }
};

template <bool kSideBySide, typename T>
__device__ __forceinline__ void put_rows(const PlaneParams& p, const PlaneBlock& block,
                                         const PlaneCell& cell, int start,
                                         const PlaneAccumulators<T>& sum, T* results) {
  const int lanes = p.t.column.lanes;
  const int q =
      (block.first_lattice_column + cell.column) * lanes + cell.column_lane - block.first_column;
  const auto locate = [&](int row) {
    return p.rows_apart ? locate_row<T>(p, start, cell.plane, row) : start + row * p.t.column.count;
  };
  int row = cell.row * p.t.row.lanes + cell.row_lane;
  ResultRow<T, kSideBySide> to(results + locate(row), q, lanes, block.columns);
  const int left = block.rows - row;
  const int pitch = p.t.row.lanes * p.t.column.count;
#pragma unroll
  for (int j = 0; j < kPlaneRows; ++j) {
    if (j * p.t.row.lanes >= left) break;
    to.store(sum[j]);
    if (j + 1 == kPlaneRows) break;
    int step = pitch;
    if (p.rows_apart) step = locate(row + p.t.row.lanes) - locate(row);
    row += p.t.row.lanes;
    to.move(step);
  }
}

// Writes a cell's outputs to shared memory. `start` is the plane's.
template <typename T>
__device__ __forceinline__ void put_results(const PlaneParams& p, const PlaneBlock& block,
                                            const PlaneCell& cell, int start,
                                            const PlaneAccumulators<T>& sum, T* results) {
  if (sizeof(T) == 2 && p.t.column.lanes == 1) {
    put_rows<true>(p, block, cell, start, sum, results);
  } else {
    put_rows<false>(p, block, cell, start, sum, results);
  }
}

// Stores a span to global memory, from shared memory with the same offset within 16 bytes: whole
// chunks, and single elements at both ends.
template <typename T>
__device__ __forceinline__ void write_span(T* target, const T* results, int phase, int length) {
  constexpr int kChunk = 16 / sizeof(T);
  const int thread = threadIdx.x;
  const int head = min((kChunk - phase) % kChunk, length);
  const int tail = (length - head) % kChunk;
  const int end = length - tail;
  if (thread < head) target[thread] = results[thread];
#pragma unroll 4
  for (int i = head + thread * kChunk; i < end; i += kDepthwiseThreads * kChunk) {
    *reinterpret_cast<uint4*>(target + i) = *reinterpret_cast<const uint4*>(results + i);
  }
  if (thread < tail) target[end + thread] = results[end + thread];
}

// Stores the tile's outputs to global memory.
template <typename T>
__device__ inline void write_results(const PlaneParams& p, const PlaneBlock& block, int filter,
                                     const T* results) {
  constexpr int kChunk = 16 / sizeof(T);
  const int plane_results = block.rows * p.t.column.count;
  T* target = static_cast<T*>(p.t.target);
  const int planes = p.planes_together ? 1 : block.planes;
  for (int plane = 0; plane < planes; ++plane) {
    const PlaneStart start = locate_plane<T>(p, block, filter, plane);
    if (p.rows_apart) {
      for (int row = 0; row < block.rows; ++row) {
        const int shared = locate_row<T>(p, start.shared, plane, row);
        write_span(target + start.target + row * p.t.target_h, results + shared, shared % kChunk,
                   block.columns);
      }
    } else {
      write_span(target + start.target, results + start.shared, start.shared % kChunk,
                 p.planes_together ? block.planes * plane_results : plane_results);
    }
  }
}

}  // namespace convx
