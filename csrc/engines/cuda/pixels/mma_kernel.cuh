// Convolution with gathered pixels on the tensor cores of sm_80 and later (mma.sync):
//
//     accumulator[pixel][filter] = sum over steps and k of  gathered[pixel][k] * packed[filter][k]
//
// pixel_fit.h describes k and the staging. A block computes one tile: two windows of kBlocks * 64
// pixels by kFilters filters.
//
//                        kFilters
//                +---------------------+   warp 0: pixels  0-15, 64-79, ...
//    window 0    | warps 0 to 3        |   warp 1: pixels 16-31, 80-95, ...
//                +---------------------+
//    window 1    | warps 4 to 7        |
//                +---------------------+
//
// All eight warps copy (cp.async) and multiply. A warp gathers the values of its 16 pixels of every
// 64 into registers, and reads all filters, 16 bytes per lane at a time.
//
// Shared memory: the tables of pixel_place.cuh, and two rings. The epilogue stages accumulators
// where the rings were.
//
//     source ring   [group of chunks][chunk][channel][row][column]
//     filter ring   [stage][step][component][16 filters][lane][16 bytes]
//
// A stage is some steps of a chunk or, if a chunk has few steps, all steps of a group of chunks.
// The copies of a stage are one cp.async group of each thread.
//
// This kernel has not been measured on any GPU (docs/engines/cuda_mma.md).
#pragma once

#include "device/async_copy.cuh"
#include "device/cp_async.cuh"
#include "device/memory.cuh"
#include "device/mma.cuh"
#include "engines/cuda/pixels/pixel_gather.cuh"
#include "engines/cuda/pixels/pixel_load.cuh"
#include "engines/cuda/pixels/pixel_store.cuh"
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
      loader_.rotate();
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

template <TensorMath kMath, int kBlocks, int kFilters, bool kFolded>
class MmaMultiplier {
  using Product = Mma<typename TensorTypes<kMath>::Operand>;
  using Gather = PixelGather<kMath, kBlocks, kFolded>;
  using Operands = typename Gather::Operand[kBlocks][Gather::kPlanes];
  static constexpr bool kSplit = kMath == TensorMath::kIeee;
  static constexpr int kPlanes = Gather::kPlanes;
  static constexpr int kPlaneBytes = kFilters * kStepBytes;
  // Filters read at a time: enough independent accumulators to hide latency, with few registers.
  static constexpr int kBatch = kSplit || kFilters == 32 ? 32 : 64;

 public:
  using Sums = WgmmaSums<kFilters>;  // a warp's mma.sync accumulators have the layout of wgmma's

  // source: shared address of the source ring.
  __device__ __forceinline__ MmaMultiplier(const PixelParams& p, const PixelTile& tile,
                                           int warpgroup, const int* distances, uint32_t source)
      : p_(p),
        gather_(p, shared_address(distances)),
        source_(source),
        first_(source),
        end_(source + p.source_stages * p.stage_chunks * p.source_stage_bytes) {
    gather_.start_window(StagedTile(p, tile), tile.first + warpgroup * p.window_step);
    clear(totals_);
  }

  // Multiplies the steps of a stage. filters: shared address of its filters.
  __device__ __forceinline__ void multiply_stage(int steps, uint32_t filters) {
    uint32_t b = filters + (threadIdx.x & 31) * 16;
    typename Gather::Values values;
    gather(values);
#pragma unroll 1
    for (int left = steps; left > 0; --left) {
      Operands a;
      Gather::convert(values, a);
      if (left > 1) gather(values);  // prefetch the next step during this step's MMAs
      if constexpr (kSplit) {
        multiply_split(a, b);
      } else {
        multiply(a, b);
      }
      b += p_.step_bytes;
    }
  }

  // The accumulators; complete after the last stage.
  using Totals = Sums[kBlocks];
  __device__ __forceinline__ const Totals& totals() const { return totals_; }

 private:
  static __device__ __forceinline__ void clear(Sums (&sums)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (float& sum : sums[block].value) sum = 0;
    }
  }

  __device__ __forceinline__ void gather(typename Gather::Values& values) {
    if (step_ == 0) gather_.start_chunk(source_);
    gather_.template load<true>(values);
    if (++step_ == p_.steps) {
      step_ = 0;
      source_ += p_.source_stage_bytes;
      if (source_ == end_) source_ = first_;
    }
  }

  // Both halves of k of filters [16 i, 16 i + 8) and of the 8 filters behind them.
  struct Filters {
    uint32_t words[kBatch / 16][4];

    __device__ __forceinline__ Filters(uint32_t b, int first) {
#pragma unroll
      for (int i = 0; i < kBatch / 16; ++i)
        load_16_bytes(b + first * kStepBytes + i * 512, words[i]);
    }
  };

  __device__ __forceinline__ void multiply(const Operands& a, uint32_t b) {
#pragma unroll
    for (int first = 0; first < kFilters; first += kBatch) {
      product(totals_, a, 0, Filters(b, first), first);
    }
  }

  // Tensor cores truncate, and each MMA loses a share of the sum so far. A step's small products
  // therefore come first, and steps are added outside of the tensor cores. There are no registers
  // for a separate chain of small products over many steps.
  __device__ __forceinline__ void multiply_split(const Operands& a, uint32_t b) {
#pragma unroll
    for (int first = 0; first < kFilters; first += kBatch) {
      const Filters b0(b, first), b1(b + kPlaneBytes, first), b2(b + 2 * kPlaneBytes, first);
      WgmmaSums<kBatch> step[kBlocks] = {};
      // Products of components 1 and 2, 2 and 1, and 2 and 2 are below float32's rounding.
      product(step, a, 0, b2, 0);
      product(step, a, 2, b0, 0);
      product(step, a, 1, b1, 0);
      product(step, a, 0, b1, 0);
      product(step, a, 1, b0, 0);
      product(step, a, 0, b0, 0);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kBatch / 2; ++i) {
          totals_[block].value[first / 2 + i] += step[block].value[i];
        }
      }
    }
  }

  // first: index of the batch's first filter among those of the accumulators.
  template <int kColumns>
  static __device__ __forceinline__ void product(WgmmaSums<kColumns> (&sums)[kBlocks],
                                                 const Operands& a, int a_plane, const Filters& b,
                                                 int first) {
#pragma unroll
    for (int i = 0; i < kBatch / 8; ++i) {  // 8 filters per MMA
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        Product::multiply(sums[block].value + 4 * (first / 8 + i), a[block][a_plane],
                          b.words[i / 2][i % 2 * 2], b.words[i / 2][i % 2 * 2 + 1]);
      }
    }
  }

  const PixelParams& p_;
  Gather gather_;
  int step_ = 0;     // within the chunk
  uint32_t source_;  // address of the chunk
  const uint32_t first_, end_;
  Sums totals_[kBlocks];
};

template <TensorMath kMath, int kBlocks, int kFilters, bool kFolded>
__device__ __forceinline__ void multiply_tile(const PixelParams& p, const PixelTile& tile,
                                              char* memory) {
  constexpr int kWindow = kBlocks * kPixelBlock;
  const int warpgroup = threadIdx.x / 128;
  const PixelTables tables(p, memory, gathered_depth(kMath), kWindow);
  const uint32_t source = shared_address(memory) + p.source_offset;
  const uint32_t filters = shared_address(memory) + p.filter_offset;
  if (kFolded) fill_distances<kMath>(p, tables.distances);
  StageLoader<typename TensorTypes<kMath>::Element> loader(p, tile, tables.sources, source,
                                                           filters);
  __syncthreads();  // the tables are complete
  for (int i = 1; i < p.filter_stages; ++i) loader.load_next();

  MmaMultiplier<kMath, kBlocks, kFilters, kFolded> multiplier(p, tile, warpgroup, tables.distances,
                                                              source);
  int slot = 0;
#pragma unroll 1
  for (StageCursor at(p, tile); !at.done(); at.advance()) {
    wait_for_stage(p.filter_stages);
    // The stage is complete for all threads, and all have left the previous one: its place is free.
    __syncthreads();
    loader.load_next();
    __syncwarp();  // copying diverges lanes, and mma.sync requires convergence
    multiplier.multiply_stage(at.steps(), filters + slot * p.filter_stage_bytes);
    if (++slot == p.filter_stages) slot = 0;
  }
  __syncthreads();  // the rings are free for the epilogue
  char* const staging =
      memory + p.staging_offset + warpgroup * kStoreFilters * staging_elements(kWindow, 4) * 4;
  store_window<kMath>(p, tile, warpgroup, multiplier.totals(), staging,
                      tables.targets + warpgroup * kWindow);
}

template <TensorMath kMath, int kBlocks, int kFilters, bool kFolded>
__global__ void __launch_bounds__(kMmaThreads, count_mma_blocks(kMath, kFilters, kBlocks))
    pixel_mma_kernel(const __grid_constant__ PixelParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kCompiled = has_mma_tile_beside_wgmma({kFilters, kBlocks, kFolded});
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr bool kCompiled = true;
#else
  constexpr bool kCompiled = false;
#endif
  if constexpr (kCompiled) {
    extern __shared__ __align__(128) char memory[];
    if (static_cast<int>(blockIdx.x) >= p.tiles) return;
    multiply_tile<kMath, kBlocks, kFilters, kFolded>(p, locate_tile(p, blockIdx.x), memory);
  }
}

}  // namespace convx
