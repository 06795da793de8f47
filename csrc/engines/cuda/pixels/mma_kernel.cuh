// Convolution with gathered pixels on the tensor cores of sm_80 and later (mma.sync):
//
//     accumulator[pixel][filter] = sum over steps and k of  gathered[pixel][k] * packed[filter][k]
//
// pixel_shape.h describes k and the staging. A block computes one tile: two windows of kBlocks * 64
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
// Shared memory: the tables of pixel_place.cuh, the source ring and the filter ring
// (mma_stages.cuh). The epilogue stages accumulators where the rings were.
//
// This kernel has not been measured on any GPU (docs/engines/cuda_mma.md).
#pragma once

#include "device/mma.cuh"
#include "engines/cuda/pixels/mma_stages.cuh"
#include "engines/cuda/pixels/pixel_gather.cuh"
#include "engines/cuda/pixels/pixel_store.cuh"

namespace convx {

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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  if (static_cast<int>(blockIdx.x) >= p.tiles) return;
  multiply_tile<kMath, kBlocks, kFilters, kFolded>(p, locate_tile(p, blockIdx.x), memory);
#endif
}

}  // namespace convx
