// The pipeline of a block: all threads copy what stages ahead will multiply.
//
//   source ring   [group of chunks][chunk][channel][row][column]
//   filter ring   [stage][step][plane][16 filters][lane][16 bytes]
//
// A stage is some steps of a chunk, or, where a chunk has few steps, all steps of a group of
// chunks. Copies of a stage are one group of asynchronous copies of each thread.
#pragma once

#include "device/async_copy.cuh"
#include "device/cp_async.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda_mma/mma_tiling.h"
#include "engines/cuda_pixel_tiles/pixel_load.cuh"

namespace convx {

// Walks over the stages of a tile.
class StageCursor {
 public:
  __device__ __forceinline__ StageCursor(const PixelParams& p, const PixelTile& tile)
      : p_(p), chunk_(tile.chunk), end_(tile.chunk_end) {}

  __device__ __forceinline__ bool done() const { return chunk_ >= end_; }
  __device__ __forceinline__ bool starts_group() const { return step_ == 0; }
  __device__ __forceinline__ int chunk() const { return chunk_; }
  // Chunks of the group that the stage belongs to: fewer at the end.
  __device__ __forceinline__ int chunks() const { return min(p_.stage_chunks, end_ - chunk_); }
  __device__ __forceinline__ int steps() const {
    return min(p_.stage_steps, chunks() * p_.steps - step_);
  }
  __device__ __forceinline__ void advance() {
    const int group_steps = chunks() * p_.steps;
    step_ += p_.stage_steps;
    if (step_ >= group_steps) {
      step_ = 0;
      chunk_ += p_.stage_chunks;
    }
  }

 private:
  const PixelParams& p_;
  int chunk_;  // first of the group
  const int end_;
  int step_ = 0;  // of the group
};

template <typename Element>
class StageLoader {
 public:
  // source and filters: shared addresses of the rings. All threads of the block have to meet
  // before the first stage is loaded.
  __device__ __forceinline__ StageLoader(const PixelParams& p, const PixelTile& tile, int* sources,
                                         uint32_t source, uint32_t filters)
      : p_(p),
        loader_(p, sources, threadIdx.x),
        next_(p, tile),
        source_(source),
        filters_(filters) {
    loader_.start_tile(tile);
    packed_ =
        static_cast<const char*>(p.packed) +
        (static_cast<int64_t>(tile.filter_tile) * p.chunks + tile.chunk) * p.steps * p.step_bytes;
  }

  // Starts the copies of the next stage; behind the last, of nothing.
  __device__ __forceinline__ void load_next() {
    if (!next_.done()) {
      if (next_.starts_group()) load_sources();
      load_filters();
      next_.advance();
    }
    commit_copies();
  }

 private:
  __device__ __forceinline__ void load_sources() {
    const int group_bytes = p_.stage_chunks * p_.source_stage_bytes;
    uint32_t to = source_ + group_slot_ * group_bytes;
#pragma unroll 1
    for (int i = 0; i < next_.chunks(); ++i) {
      loader_.load_chunk(to, next_.chunk() + i);
      loader_.turn();
      to += p_.source_stage_bytes;
    }
    if (++group_slot_ == p_.source_stages) group_slot_ = 0;
  }

  __device__ __forceinline__ void load_filters() {
    const int bytes = next_.steps() * p_.step_bytes;
    const uint32_t to = filters_ + filter_slot_ * p_.filter_stage_bytes;
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kMmaThreads) {
      copy_async<16>(to + i, packed_ + i, true);
    }
    packed_ += bytes;
    if (++filter_slot_ == p_.filter_stages) filter_slot_ = 0;
  }

  const PixelParams& p_;
  PixelLoader<Element, kMmaThreads> loader_;
  StageCursor next_;
  const uint32_t source_, filters_;
  const char* packed_;
  int group_slot_ = 0, filter_slot_ = 0;
};

// Returns once this thread's copies of the oldest stage are done, of stages - 1 that are under way.
__device__ __forceinline__ void wait_for_stage(int stages) {
  if (stages == 2) {
    wait_copies<0>();
  } else if (stages == 3) {
    wait_copies<1>();
  } else {
    wait_copies<2>();
  }
}

}  // namespace convx
