// The tables of a block, in its shared memory.
#pragma once

#include "engines/cuda_window/window_place.cuh"

namespace convx {

// The table of sources is written for every tile, the others once.
//   taps      [taps] 16-byte pieces from a tile's start to a tap's first position
//   segments  [segments]
//   sources   [positions] where their values are, see WindowLoader
//   lanes     [channels] {bytes in a stage, row << 16 | column} of a folded channel
struct WindowTables {
  int* taps;
  WindowSegment* segments;
  int2* sources;
  int2* lanes;

  __device__ __forceinline__ WindowTables(const WindowParams& p, char* memory) {
    sources = reinterpret_cast<int2*>(memory + p.table_offset);
    lanes = sources + p.positions;
    const bool folded = p.load == WindowLoad::kFolded;
    segments = reinterpret_cast<WindowSegment*>(lanes + (folded ? p.chunks * p.chunk_channels : 0));
    taps = reinterpret_cast<int*>(segments + p.segments);
  }
};

// Fills the tables that do not change from tile to tile, by all threads of the block.
__device__ __forceinline__ void fill_window_tables(const WindowParams& p,
                                                   const WindowTables& tables, char* memory,
                                                   int element_bytes) {
  for (int i = threadIdx.x; i < p.taps; i += blockDim.x) {
    tables.taps[i] = p.tap_positions[i] * (p.lane_bytes / 16);
  }
  for (int i = threadIdx.x; i < p.segments; i += blockDim.x) tables.segments[i] = p.segment[i];
  if (p.raw_stages > 0) {  // the zeros before each channel's spans
    const int rows = p.raw_stages * p.raw_channels;
    for (int i = threadIdx.x; i < rows; i += blockDim.x) {
      *reinterpret_cast<uint4*>(memory + p.raw_offset + i * p.raw_pitch * element_bytes) =
          make_uint4(0, 0, 0, 0);
    }
  }
  if (p.load != WindowLoad::kFolded) return;
  const int taps = p.tap_rows * p.tap_columns;
  for (int i = threadIdx.x; i < p.chunks * p.chunk_channels; i += blockDim.x) {
    const int channel = i / taps;
    const int row = p.offset_h0 + i % taps / p.tap_columns * p.offset_h_step;
    const int column = p.offset_w0 + i % taps % p.tap_columns * p.offset_w_step;
    const int bytes =
        (channel * p.raw_pitch + row * p.source_width + column) * element_bytes;  // in a stage
    // A row far below the image is outside for every position.
    const int far = 0x7fff;
    tables.lanes[i] = i < p.channels
                          ? make_int2(bytes, static_cast<int>(static_cast<unsigned>(row) << 16) |
                                                 (column & 0xffff))
                          : make_int2(0, far << 16);
  }
}

}  // namespace convx
