// Convolution with gathered pixels on Hopper's tensor cores (wgmma):
//
//     accumulator[pixel][filter] = sum over steps and k of  gathered[pixel][k] * packed[filter][k]
//
// The A operand is gathered from shared memory into registers, at any offset, and rounded or split
// on the way; pixel_fit.h describes k and the staging. A tile is two windows of pixels by
// kFilters filters:
//
//                              kFilters
//                     +---------------------+
//     window 0        | warpgroup 0         |   kBlocks * 64 pixels
//                     +---------------------+
//     window 1        | warpgroup 1         |   kBlocks * 64 pixels
//                     +---------------------+
//
// - Warpgroups 0 and 1 are the consumers: they gather, issue the MMAs and run the epilogue.
// - In warpgroup 2, three producer warps stage source values, and one thread of the fourth warp
//   issues the bulk copies of packed filters.
//
// Blocks are persistent: block b has tiles b, b + gridDim.x, and so on. Shared memory:
//
//     barriers      512 bytes
//     tables        PixelTables (pixel_place.cuh)
//     staging       [warpgroup][32 filters][window + 16 bytes], float32       epilogue
//     source ring   2 to 4 stages [channel][row][column]                      cp.async, or
//                                 [channel][row][split pair]                  through registers
//     filter ring   [stage][step][component][filter][32 bytes]                bulk copies
//
// What limits it is the number of instructions around the MMAs (docs/engines/cuda_pixels.md).
#pragma once

#include <type_traits>

#include "device/dependent_launch.cuh"
#include "device/mbarrier.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/pixels/pixel_gather.cuh"
#include "engines/cuda/pixels/pixel_load.cuh"
#include "engines/cuda/pixels/pixel_store.cuh"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "kernels/fill_stages.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

// Shared-memory addresses of a block's mbarriers, 8 bytes each, and of its rings.
struct PixelRings {
  uint32_t source_full, source_empty, filter_full, filter_empty;
  uint32_t source, filters;

  __device__ __forceinline__ PixelRings(const PixelParams& p, uint32_t memory) {
    source_full = memory;
    source_empty = source_full + 8 * p.source_stages;
    filter_full = source_empty + 8 * p.source_stages;
    filter_empty = filter_full + 8 * p.filter_stages;
    source = memory + p.source_offset;
    filters = memory + p.filter_offset;
  }

  __device__ __forceinline__ void init(const PixelParams& p) const {
    constexpr int kMultiplierWarps = 8;
    for (int i = 0; i < p.source_stages; ++i) {
      init_barrier(source_full + 8 * i, kPixelLoaders);
      init_barrier(source_empty + 8 * i, kMultiplierWarps);
    }
    for (int i = 0; i < p.filter_stages; ++i) {
      init_barrier(filter_full + 8 * i, 1);
      init_barrier(filter_empty + 8 * i, kMultiplierWarps);
    }
    fence_barrier_init();
  }
};

template <TensorMath kMath, int kBlocks, int kFilters, bool kFolded, bool kPaired>
class PixelMultiplier {
  using Mma = Wgmma<typename TensorTypes<kMath>::Operand, kFilters>;
  using Gather =
      std::conditional_t<kPaired, PairGather<kMath, kBlocks>, PixelGather<kMath, kBlocks, kFolded>>;
  using Operand = typename Gather::Operand;
  static constexpr bool kSplit = kMath == TensorMath::kIeee;
  static constexpr int kPlanes = Gather::kPlanes;
  static constexpr bool kHalves = is_half(kMath);
  static constexpr bool kLow = kMath == TensorMath::kHalfIeee;  // scaled fp16 with two components
  static constexpr bool kTotals = kSplit || (kLow && has_half_totals(kFilters, kBlocks));
  // Steps per accumulation chain. Tensor cores truncate, and each MMA loses a share of the sum so
  // far. In kIeee a step's small products precede its large one, but in a longer chain they would
  // follow the large products of earlier steps, and there are no registers for a separate chain of
  // small products.
  static constexpr int kChainSteps = kSplit ? 1 : kPixelHalfChain;
  // Sets of operands that alternate: one is gathered while the tensor cores read the other. Large
  // operands, and folded ones, leave no registers for two sets.
  static constexpr int kSets = kHalves ? 2 : kSplit || kBlocks == 4 || kFolded ? 1 : 2;

 public:
  using Sums = WgmmaSums<kFilters>;
  using Operands = Operand[kBlocks][kPlanes];

  __device__ __forceinline__ PixelMultiplier(const PixelParams& p, const PixelRings& rings,
                                             const int* distances)
      : p_(p),
        rings_(rings),
        gather_(p, shared_address(distances)),
        leader_((threadIdx.x & 31) == 0) {
#pragma unroll
    for (int& slot : ended_) slot = -1;
  }

  // Computes a window. `totals` is complete on return.
  __device__ __forceinline__ void reduce(const PixelTile& tile, int window,
                                         Sums (&totals)[kBlocks]) {
    gather_.start_window(StagedTile(p_, tile), window);
    accumulate_ = 0;
    if constexpr (kSplit || kHalves) {
      reduce_parts(tile, totals);
    } else {
      Operands sets[kSets];
#pragma unroll 1
      for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
        enter_source();
        wait_wgmma<0>();  // the previous chunk may have ended with either set
        int left = p_.steps;
#pragma unroll 1
        for (; left > kSets; left -= kSets) {
          multiply_step<false>(totals, sets[0]);
          if constexpr (kSets == 2) multiply_step<false>(totals, sets[1]);
        }
        if (kSets == 2 && left == 2) {
          multiply_step<false>(totals, sets[0]);
          multiply_step<true>(totals, sets[kSets - 1]);
        } else {
          multiply_step<true>(totals, sets[0]);
        }
        leave_source();
      }
    }
    wait_wgmma<0>();
#pragma unroll
    for (int i = kSets - 1; i >= 0; --i) release_filters(ended_[i]);
  }

 private:
  // Gathers a step's operands into a set that no MMA in flight reads, and issues the step's MMAs.
  template <bool kLast>
  __device__ __forceinline__ void multiply_step(Sums (&sums)[kBlocks], Operands& a) {
    wait_wgmma<kSets - 1>();
    retire_filters();
    typename Gather::Values values;
    gather_.template load<kLast>(values);
    Gather::convert(values, a);
    product(sums, a, 0, enter_step(), 0, accumulate_);
    commit_wgmma();
    accumulate_ = 1;
    leave_step(kLast);
  }

  // Accumulators besides the totals. Unused ones take no registers.
  struct Chains {
    Sums chain[kBlocks];
    Sums low[kBlocks];  // products hi * lo and lo * hi, scaled by kHalfLowScale
  };

  // Split or scaled operands. Chains of large products are short, and are added to the totals
  // outside of the tensor cores. Products with a lo component are so small that one long chain is
  // accurate enough.
  __device__ __forceinline__ void reduce_parts(const PixelTile& tile, Sums (&totals)[kBlocks]) {
    Chains chains;
    clear(totals);
    if constexpr (kLow) clear(chains.low);
    Operands sets[kPaired ? 2 : 1];
    int chained = 0, left = (tile.chunk_end - tile.chunk) * p_.steps, step = 0;
    const auto end_step_before = [&] {
      if constexpr (kSplit) {
        wait_wgmma<0>();
        retire_filters();
      }
      if constexpr (kTotals) {
        if (chained < kChainSteps) return;
        if constexpr (kHalves) wait_wgmma<0>();
        add_chain(chains.chain, totals);
        chained = 0;
      }
    };
    const auto take_step = [&](Operands& a) {
      if constexpr (kHalves) {  // wait for the MMAs of two steps ago, which read this set
        wait_wgmma<1>();
        retire_filters();
      }
      if (step == 0) enter_source();
      const bool last = ++step == p_.steps;
      if constexpr (kPaired) {
        gather_.load(a);  // while the tensor cores read the other set
        enter_filters();
        end_step_before();
      } else {
        typename Gather::Values values;
        last ? gather_.template load<true>(values) : gather_.template load<false>(values);
        end_step_before();
        Gather::convert(values, a);
      }
      const uint32_t b = enter_step();
      if constexpr (kSplit) {
        multiply_split(chains.chain, a, b, chained);
      } else {
        if constexpr (kLow) {
          product(chains.low, a, 1, b, 0, 1);
          product(chains.low, a, 0, b, 1, 1);
        }
        if constexpr (kTotals) {
          product(chains.chain, a, 0, b, 0, chained);
        } else {
          product(totals, a, 0, b, 0, 1);
        }
      }
      commit_wgmma();
      accumulate_ = 1;
      ++chained;
      leave_step(last);
      if (last) {
        leave_source();
        step = 0;
      }
      --left;
    };
#pragma unroll 1
    while (left > (kHalves ? 1 : 0)) {
      take_step(sets[0]);
      if constexpr (kPaired) {
        // No branch may stand between the two sets of scaled fp16: ptxas would lose track of the
        // MMAs in flight.
        if (kHalves || left > 0) take_step(sets[1]);
      }
    }
    if (kHalves && left > 0) take_step(sets[0]);
    wait_wgmma<0>();
    if constexpr (kTotals) add_chain(chains.chain, totals);
    if constexpr (kLow) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kFilters / 2; ++i) {
          float& total = totals[block].value[i];
          total = fmaf(chains.low[block].value[i], 1 / kHalfLowScale, total);
        }
      }
    }
  }

  __device__ __forceinline__ void enter_source() {
    wait_barrier(rings_.source_full + 8 * source_.slot, source_.parity);
    gather_.start_chunk(rings_.source + source_.slot * p_.source_stage_bytes);
  }

  __device__ __forceinline__ void leave_source() {
    __syncwarp();
    if (leader_) arrive(rings_.source_empty + 8 * source_.slot);
    source_.advance(p_.source_stages);
  }

  // Waits for the step's filters, if they begin a new stage.
  __device__ __forceinline__ void enter_filters() {
    if (within_ > 0) return;
    wait_barrier(rings_.filter_full + 8 * filter_.slot, filter_parity());
    b_ = lower_descriptor(rings_.filters + filter_.slot * p_.filter_stage_bytes);
  }

  // Returns the descriptor of the step's filters, after the fences that wgmma requires.
  __device__ __forceinline__ uint32_t enter_step() {
    if constexpr (!kPaired) enter_filters();
    __syncwarp();  // lanes diverge in waits and stores, and wgmma requires convergence
    fence_wgmma();
    return b_;
  }

  __device__ __forceinline__ void leave_step(bool ends_chunk) {
    b_ += p_.step_bytes / 16;
    if (++within_ == p_.stage_steps || ends_chunk) end_filters();
  }

  // Call after issuing the last step that reads this stage of filters.
  __device__ __forceinline__ void end_filters() {
    ended_[0] = filter_.slot;
    filter_.advance(p_.filter_stages);
    within_ = 0;
  }

  // Call when all steps but the last kSets - 1 have completed: releases the filters they have read.
  __device__ __forceinline__ void retire_filters() {
    release_filters(ended_[kSets - 1]);
#pragma unroll
    for (int i = kSets - 1; i > 0; --i) ended_[i] = ended_[i - 1];
    ended_[0] = -1;
  }

  __device__ __forceinline__ void release_filters(int& slot) {
    if (slot >= 0 && leader_ && !p_.resident) arrive(rings_.filter_empty + 8 * slot);
    slot = -1;
  }

  // Resident filters are loaded only once.
  __device__ __forceinline__ uint32_t filter_parity() const {
    return p_.resident ? 0 : filter_.parity;
  }

  // Small products first. Products of components 1 and 2, 2 and 1, and 2 and 2 are below float32's
  // rounding.
  __device__ __forceinline__ void multiply_split(Sums (&sums)[kBlocks], const Operands& a,
                                                 uint32_t b, int accumulate) {
    product(sums, a, 0, b, 2, accumulate);
    product(sums, a, 2, b, 0, 1);
    product(sums, a, 1, b, 1, 1);
    product(sums, a, 0, b, 1, 1);
    product(sums, a, 1, b, 0, 1);
    product(sums, a, 0, b, 0, 1);
  }

  __device__ __forceinline__ void product(Sums (&sums)[kBlocks], const Operands& a, int a_plane,
                                          uint32_t b, int b_plane, int accumulate) {
    const uint64_t descriptor =
        join_descriptor(b + b_plane * (kFilters * kStepBytes / 16), upper_descriptor(kStepBytes));
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Mma::multiply(sums[block], a[block][a_plane], descriptor, accumulate);
    }
  }

  static __device__ __forceinline__ void clear(Sums (&sums)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (float& sum : sums[block].value) sum = 0;
    }
  }

  __device__ __forceinline__ void add_chain(const Sums (&chain)[kBlocks], Sums (&totals)[kBlocks]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kFilters / 2; ++i) totals[block].value[i] += chain[block].value[i];
    }
  }

  const PixelParams& p_;
  const PixelRings& rings_;
  Gather gather_;
  const bool leader_;
  RingCursor source_, filter_;
  uint32_t b_ = 0;    // descriptor of the step's filters
  int within_ = 0;    // step within the stage of filters
  int ended_[kSets];  // stages to release once the latest steps complete, or -1
  int accumulate_ = 0;
};

template <typename Loader>
__device__ __forceinline__ void load_sources(const PixelParams& p, const PixelRings& rings,
                                             int* sources, int thread) {
  Loader loader(p, sources, thread);
  RingCursor cursor;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const PixelTile tile = locate_tile(p, index);
    loader.start_tile(tile);
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      wait_barrier(rings.source_empty + 8 * cursor.slot, cursor.parity ^ 1);
      const uint32_t full = rings.source_full + 8 * cursor.slot;
      if (loader.load_chunk(rings.source + cursor.slot * p.source_stage_bytes, chunk)) {
        arrive_after_copies(full);
      } else {
        arrive(full);
      }
      cursor.advance(p.source_stages);
    }
  }
}

template <TensorMath kMath, int kBlocks, int kFilters, bool kFolded, bool kPaired>
__device__ __forceinline__ void multiply_tiles(const PixelParams& p, const PixelRings& rings,
                                               const PixelTables& tables, char* memory) {
  constexpr int kWindow = kBlocks * kPixelBlock;
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  PixelMultiplier<kMath, kBlocks, kFilters, kFolded, kPaired> multiplier(p, rings,
                                                                         tables.distances);
  char* const staging =
      memory + p.staging_offset + warpgroup * kStoreFilters * staging_elements(kWindow, 4) * 4;
  int* const targets = tables.targets + warpgroup * kWindow;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const PixelTile tile = locate_tile(p, index);
    WgmmaSums<kFilters> sums[kBlocks];
    multiplier.reduce(tile, tile.first + warpgroup * p.window_step, sums);
    store_window<kMath>(p, tile, warpgroup, sums, staging, targets);
  }
}

template <TensorMath kMath, int kBlocks, int kFilters, bool kFolded, bool kPaired>
__global__ void __launch_bounds__(kPixelThreads, 1)
    pixel_wgmma_kernel(const __grid_constant__ PixelParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wait_for_kernels_before();
  let_next_kernel_start();
  if (__syncthreads_or(must_return(p))) return;  // other blocks may be about to set the flag
  extern __shared__ char unaligned[];
  const uint32_t start = shared_address(unaligned);
  char* const memory = unaligned + ((1024 - (start & 1023)) & 1023);
  const PixelRings rings(p, shared_address(memory));
  const PixelTables tables(p, memory + kPixelBarrierBytes,
                           kPaired ? kPairDepth : gathered_depth(kMath), kBlocks * kPixelBlock);
  if constexpr (kPaired) {
    fill_pair_distances<kMath>(p, tables.distances);
  } else if constexpr (kFolded) {
    fill_distances<kMath>(p, tables.distances);
  }
  if (threadIdx.x == 0) rings.init(p);
  __syncthreads();
  // The block starts with 168 registers per thread.
  if (threadIdx.x < 256) {
    take_registers<208>();
    multiply_tiles<kMath, kBlocks, kFilters, kFolded, kPaired>(p, rings, tables, memory);
  } else {
    give_registers<88>();
    if (threadIdx.x < 256 + kPixelLoaders) {
      using Element = typename TensorTypes<kMath>::Element;
      using Loader = std::conditional_t<kPaired, PairLoader<kMath, kPixelLoaders>,
                                        PixelLoader<Element, kPixelLoaders>>;
      load_sources<Loader>(p, rings, tables.sources, threadIdx.x - 256);
    } else if (threadIdx.x == 256 + kPixelLoaders) {
      copy_filters(p, rings, p.steps, p.stage_steps, p.step_bytes);
    }
  }
#endif
}

}  // namespace convx
