// Epilogue of the grouped tensor-core kernel: outputs are collected in shared memory in the layout
// of the target and stored in chunks of 16 bytes.
#pragma once

#include <cstdint>

#include "device/vectors.cuh"
#include "engines/cuda/grouped/grouped_mma_params.h"
#include "engines/cuda/grouped/grouped_stage.cuh"

namespace convx {

// The tile's outputs of one image. Every output has the same offset within 16 bytes in shared
// memory as in the target: the first one begins at `phase`, and the pitches preserve that.
template <typename T>
struct ResultPlace {
  T* target;  // the tile's first output
  T* shared;  // aligned to 16 bytes
  int phase;  // offset of the first output from `shared`, in elements

  // `image` counts from the block's first.
  __device__ __forceinline__ ResultPlace(const GroupedMmaParams& p, const GroupedBlock& block,
                                         int image, T* results)
      : target(static_cast<T*>(p.target) + (block.first_image + image) * p.target_n +
               int64_t{block.first_group} * p.target_channels * p.target_c +
               block.first_row * p.target_h + block.first_column),
        shared(results),
        phase(reinterpret_cast<uintptr_t>(target) / sizeof(T) % kResultChunk) {}

  // `filter` counts through the tile's groups.
  __device__ __forceinline__ int locate(const GroupedMmaParams& p, int filter, int row) const {
    return phase + filter * p.filter_pitch + row * p.row_pitch;
  }
};

// Stores all spans. Called by all threads of the block.
template <typename T>
__device__ __forceinline__ void write_results(const GroupedMmaParams& p, const GroupedBlock& block,
                                              const ResultPlace<T>& place) {
  const int filters = block.groups * p.target_channels;
  int spans = 1;
  int length = filters * block.rows * block.columns;
  if (p.spans == ResultSpans::kFilters) {
    spans = filters;
    length = block.rows * block.columns;
  } else if (p.spans == ResultSpans::kRows) {
    spans = filters * p.tile_rows;
    length = block.columns;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < spans * p.span_chunks; i += kGroupedMmaThreads) {
    int filter = i;
    const int chunk = p.by_span_chunks.split(filter);
    const int row = p.spans == ResultSpans::kRows ? p.by_tile_rows.split(filter) : 0;
    const int start = place.locate(p, filter, row);
    // An index within the span; negative in the first chunk.
    const int first = chunk * kResultChunk - start % kResultChunk;
    if (first >= length || row >= block.rows) continue;
    const T* from = place.shared + start + first;
    T* to = place.target + filter * p.target_c + row * p.target_h + first;
    if (first >= 0 && first + kResultChunk <= length) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int e = max(0, -first); e < min(kResultChunk, length - first); ++e) to[e] = from[e];
    }
  }
}

}  // namespace convx
