// The pipeline of a block: all threads copy the stages that are multiplied next.
//
//     source ring   [group of chunks][chunk][channel][row][column]
//     filter ring   [stage][step][component][16 filters][lane][16 bytes]
//
// A stage is some steps of a chunk or, if a chunk has few steps, all steps of a group of chunks.
// The copies of a stage are one cp.async group of each thread.
#pragma once

#include "device/async_copy.cuh"
#include "device/cp_async.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda/pixels/pixel_load.cuh"
#include "engines/cuda/pixels/pixel_tiles.h"

namespace convx {

// Iterates over the stages of a tile.
class StageCursor {
 public:
  __device__ __forceinline__ StageCursor(const PixelParams& p, const PixelTile& tile)
      : p_(p), chunk_(tile.chunk), end_(tile.chunk_end) {}

  __device__ __forceinline__ bool done() const { return chunk_ >= end_; }
  __device__ __forceinline__ bool starts_group() const { return step_ == 0; }
  __device__ __forceinline__ int chunk() const { return chunk_; }
  // Chunks of the stage's group; the last group may have fewer.
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
  int chunk_;  // first chunk of the group
  const int end_;
  int step_ = 0;  // within the group
};

template <typename Element>
class StageLoader {
 public:
  // source, filters: shared addresses of the rings. A block barrier is required before the first
  // stage is loaded.
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

  // Issues the copies of the next stage. Past the last stage it commits an empty group.
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

// Waits for this thread's copies of the oldest of the stages - 1 stages in flight.
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
