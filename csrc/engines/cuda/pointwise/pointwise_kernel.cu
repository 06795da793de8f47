// 1x1 convolution of NCHW tensors on Hopper's tensor cores, in one pass over memory:
//
//     target[filter][pixel] = bias[filter] + sum over channels of
//                             filters[filter][channel] * source[channel][pixel]
//
// A tile is 128 pixels by all filters of the block, 64 at a time. wgmma accepts a 16-bit B operand
// with contiguous columns, so pixels go in as NCHW has them, without a transpose; float32 values
// are multiplied in 16-bit components (pointwise_fit.h).
//
//     source [channel][pixel] -> producer registers -> ring -> B     A <- filters, resident
//
// - Warpgroups 0 and 1 are the consumers. They alternate: each takes a tile, so that one issues
//   MMAs while the other stores its accumulators.
// - The four warps of warpgroup 2 are the producers: they load, convert or split, and write source
//   values.
//
// Blocks are persistent. Shared memory (1 KiB of it for alignment):
//
//     barriers  512 bytes
//     staging   [warp][16 filters][128 or 512 bytes, padded]         epilogue
//     filters   [component][channel / 64][filter][128 bytes]         loaded once
//     ring      [stage][component][channel / 8][pixel / 64][8][128 bytes]
//     raw ring  [producer warp][raw stage][rows of channels]         16 bits: bulk copies in flight
//
// Memory traffic usually decides (docs/engines/cuda_pointwise.md): a block reads each source value
// once for all of its filters.
#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "device/mbarrier.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pointwise/pointwise_load.cuh"
#include "engines/cuda/pointwise/pointwise_store.cuh"
#include "kernels/around_mma.h"
#include "kernels/half_scales.cuh"

namespace convx {

template <TensorMath kMath>
class PointwiseMultiplier {
  // Components of split values are bfloat16, whether there are two or three.
  using Operand = typename TensorTypes<is_split(kMath) ? TensorMath::kIeee : kMath>::Operand;
  using Mma = Wgmma<ByColumns<Operand>, kPointwisePixels>;
  static constexpr int kChunk = pointwise_chunk(kMath);
  static constexpr int kSteps = kChunk / kProductDepth;
  static constexpr int kChain = chain_chunks(kMath);
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr bool kHalves = kMath == TensorMath::kHalfIeee;

 public:
  using Sums = WgmmaSums<kPointwisePixels>;

  // filters: shared-memory address of the block's filters.
  __device__ __forceinline__ PointwiseMultiplier(const PointwiseParams& p,
                                                 const PointwiseRing& ring, uint32_t filters,
                                                 int warpgroup)
      : p_(p), ring_(ring), filters_(lower_descriptor(filters)), warpgroup_(warpgroup) {
    if (warpgroup == 1) first_.skip(p.chunks, p.stages);
  }

  // Computes the accumulators of 64 filters, from 64 * block on. The call with is_first waits for
  // the tile's chunks; the call with is_last releases them.
  __device__ __forceinline__ void multiply(int block, bool is_first, bool is_last, Sums& totals) {
    const uint32_t a = filters_ + block * (kPointwiseFilters * 128 / 16);
    RingCursor cursor = first_, done = first_;
    __syncwarp();  // the epilogue leaves lanes diverged, and wgmma requires convergence
    if constexpr (kExact) {
      Sums sums;
#pragma unroll
      for (float& total : totals.value) total = 0;
#pragma unroll 1
      for (int chunk = 0; chunk < p_.chunks; chunk += kChain) {
        if (is_first) wait_for_chunks(cursor);
        Operands operands[kChain];
#pragma unroll
        for (int i = 0; i < kChain; ++i) operands[i] = find_chunk(a, chunk + i, cursor);
        fence_wgmma();
        // The small products of the whole chain go first: truncation removes a share of the sum so
        // far.
#pragma unroll
        for (int i = 0; i < kChain; ++i) multiply_small(sums, operands[i], i > 0);
#pragma unroll
        for (int i = 0; i < kChain; ++i) multiply_large(sums, operands[i], 1);
        commit_wgmma();
        wait_wgmma<0>();
        if (is_last) release_chunks(done);
#pragma unroll
        for (int i = 0; i < kPointwisePixels / 2; ++i) totals.value[i] += sums.value[i];
      }
    } else {
      // Accumulators of the products hi * lo and lo * hi, scaled by kHalfLowScale. They take no
      // registers in other precisions.
      Sums low;
#pragma unroll 1
      for (int chunk = 0; chunk < p_.chunks; ++chunk) {
        if (is_first) wait_for_chunks(cursor);
        const Operands operands = find_chunk(a, chunk, cursor);
        fence_wgmma();
        if constexpr (is_split(kMath)) multiply_small(totals, operands, chunk > 0);
        if constexpr (kHalves) multiply_small(low, operands, chunk > 0);
        multiply_large(totals, operands, is_split(kMath) ? 1 : chunk > 0);
        commit_wgmma();
        if (is_last && chunk > 0) {
          wait_wgmma<1>();
          release_chunks(done);
        }
      }
      wait_wgmma<0>();
      if (is_last) release_chunks(done);
      if constexpr (kHalves) {
#pragma unroll
        for (int i = 0; i < kPointwisePixels / 2; ++i) {
          totals.value[i] = fmaf(low.value[i], 1 / kHalfLowScale, totals.value[i]);
        }
      }
    }
  }

  // A barrier tells its phases apart by parity only. In a ring that holds fewer than two tiles, a
  // warpgroup could take an older phase for the one it waits for. It therefore waits until the
  // other warpgroup has found all chunks of the previous tile.
  __device__ __forceinline__ void wait_for_other() const { meet(true, warpgroup_); }
  __device__ __forceinline__ void let_other_go_on() const { meet(false, 1 - warpgroup_); }

  // Advances to this warpgroup's next tile.
  __device__ __forceinline__ void leave_tile() { first_.skip(2 * p_.chunks, p_.stages); }

 private:
  __device__ __forceinline__ void meet(bool waits, int whose) const {
    if (p_.stages >= 2 * p_.chunks) return;
    constexpr int kFirstId = 2;
    __syncwarp();
    if (waits) {
      wait_at_barrier(kFirstId + whose, 32 * kPointwiseWarps);
    } else {
      pass_barrier(kFirstId + whose, 32 * kPointwiseWarps);
    }
  }

  // Waits for the chunks of one accumulation chain.
  __device__ __forceinline__ void wait_for_chunks(RingCursor cursor) const {
#pragma unroll
    for (int i = 0; i < kChain; ++i) {
      wait_barrier(ring_.full + 8 * cursor.slot, cursor.parity);
      cursor.advance(p_.stages);
    }
    __syncwarp();  // lanes diverge while they wait
  }

  __device__ __forceinline__ void release_chunks(RingCursor& cursor) const {
#pragma unroll
    for (int i = 0; i < kChain; ++i) {
      if (threadIdx.x % 32 == 0) arrive(ring_.empty + 8 * cursor.slot);
      cursor.advance(p_.stages);
    }
  }

  // Descriptors of the first component and the first step of a chunk.
  struct Operands {
    uint32_t a, b;
  };
  __device__ __forceinline__ Operands find_chunk(uint32_t a, int chunk, RingCursor& cursor) const {
    const int channel = chunk * kChunk;
    a += channel / kFilterChannels * (p_.tile_filters * 128 / 16) +
         channel % kFilterChannels * 2 / 16;
    const uint32_t b =
        lower_columns_descriptor(ring_.chunks + cursor.slot * chunk_bytes(kMath), kColumnTileBytes);
    cursor.advance(p_.stages);
    return {a, b};
  }
  static __device__ __forceinline__ void step_on(Operands& at) {
    at.a += kProductDepth * 2 / 16;
    at.b += kProductDepth / 8 * kOctetBytes / 16;
  }

  // All products except those of the first components. Products of the smallest components are
  // below the precision of the result.
  __device__ __forceinline__ void multiply_small(Sums& sums, Operands at, int accumulate) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step, step_on(at)) {
      const int more = step > 0 ? 1 : accumulate;
      if constexpr (kExact) {
        product(sums, at.a, 0, at.b, 2, more);
        product(sums, at.a, 2, at.b, 0, 1);
        product(sums, at.a, 1, at.b, 1, 1);
      }
      product(sums, at.a, 0, at.b, 1, kExact ? 1 : more);
      product(sums, at.a, 1, at.b, 0, 1);
    }
  }

  __device__ __forceinline__ void multiply_large(Sums& sums, Operands at, int accumulate) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step, step_on(at)) {
      product(sums, at.a, 0, at.b, 0, step > 0 ? 1 : accumulate);
    }
  }

  __device__ __forceinline__ void product(Sums& sums, uint32_t a, int a_part, uint32_t b,
                                          int b_part, int accumulate) const {
    Mma::multiply(sums,
                  join_descriptor(a + a_part * (p_.filter_part_bytes / 16), upper_descriptor(128)),
                  join_descriptor(b + b_part * (chunk_part_bytes(kMath) / 16),
                                  upper_columns_descriptor(kOctetBytes)),
                  accumulate);
  }

  const PointwiseParams& p_;
  const PointwiseRing& ring_;
  const uint32_t filters_;  // descriptor of the first filter
  const int warpgroup_;
  RingCursor first_;  // first chunk of this warpgroup's tile
};

template <TensorMath kMath>
__device__ __forceinline__ void multiply_tiles(const PointwiseParams& p, const BlockWork& work,
                                               const PointwiseRing& ring, uint32_t memory) {
  const uint32_t filters = memory + p.filter_offset;
  place_filters<kMath>(p, work, filters);
  fence_async_proxy();
  wait_at_barrier<1, 32 * kPointwiseWarps>();

  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  PointwiseMultiplier<kMath> multiplier(p, ring, filters, warpgroup);
  PointwiseStorer<kMath> storer(p, work, memory + kPointwiseBarrierBytes);
  const int blocks = (work.filters + kPointwiseFilters - 1) / kPointwiseFilters;
#pragma unroll 1
  for (int tile = work.first_tile + warpgroup * work.tile_step; tile < p.tiles;
       tile += 2 * work.tile_step) {
    if (tile > work.first_tile) multiplier.wait_for_other();
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      WgmmaSums<kPointwisePixels> sums;
      const auto prefetched = storer.prefetch(block);  // during the MMAs
      multiplier.multiply(block, block == 0, block == blocks - 1, sums);
      if (block == 0 && tile + work.tile_step < p.tiles) multiplier.let_other_go_on();
      storer.store(sums, tile, block, prefetched);
    }
    multiplier.leave_tile();
  }
  storer.finish();
}

template <TensorMath kMath>
__global__ void __launch_bounds__(kPointwiseThreads, 1)
    pointwise_kernel(const __grid_constant__ PointwiseParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  const uint32_t memory = (shared_address(unaligned) + 1023) & ~1023u;
  const PointwiseRing ring(p, memory);
  const BlockWork work(p);
  if (threadIdx.x == 0) ring.init(p);
  wait_for_kernels_before();
  let_next_kernel_start();
  // One thread reads the flag for the block: other blocks may set it meanwhile.
  const bool returns = threadIdx.x == 0 && must_return(p);
  if (__syncthreads_or(returns)) return;
  // The block starts with 168 registers per thread.
  if (threadIdx.x < 32 * kPointwiseWarps) {
    take_registers<192>();
    multiply_tiles<kMath>(p, work, ring, memory);
  } else {
    give_registers<120>();
    load_sources<kMath>(p, work, ring, threadIdx.x - 32 * kPointwiseWarps);
  }
#endif
}

template <TensorMath kMath>
void launch_pointwise(const LaunchSite& site, const PointwiseShape& shape,
                      const PointwiseParams& params) {
  if constexpr (is_half(kMath)) measure(site, params);
  launch_early<pointwise_kernel<kMath>>(site, shape.grid, kPointwiseThreads, shape.shared_bytes,
                                        params);
}

void launch_cuda_pointwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& pointwise = geometry_of<PointwisePlan>(plan);
  if (pointwise.few) {
    const auto params = make_few_filters_params(*site.problem, *pointwise.few, buffers);
    if (params) return launch_few_filters(site, *pointwise.few, *params);
  }
  launch_halves(
      pointwise.products, buffers,
      [&](const PointwiseFit& fit) { return make_pointwise_params(*site.problem, fit, buffers); },
      [&](const PointwiseShape& shape, const PointwiseParams& params) {
        visit_math(shape.math,
                   [&]<TensorMath kMath>() { launch_pointwise<kMath>(site, shape, params); });
      });
}

}  // namespace convx
