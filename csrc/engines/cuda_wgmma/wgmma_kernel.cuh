// The window convolution on Hopper's tensor cores.
//
// A block: 3 or 4 warpgroups. Two multiply: each 64 filters by kColumns positions of the line
// (window_shape.h), either two windows of the same filters or two halves of the filters of one
// window. The others feed them: the last warp copies packed filters, the rest load source values.
// Blocks are persistent: block b takes tiles b, b + gridDim.x, and so on.
//
//   raw ring      [stage][channel][zeros, spans of the planes]      bulk copy   -> loaders
//   source ring   [stage][plane][position][lane_bytes]              loaders     -> multipliers
//   filter ring   [stage][tap][half][plane][64][lane_bytes]         bulk copy   -> multipliers
//   staging       [warp][8 filters][half the columns]               multipliers' stores
//
// A stage of source positions serves all taps: tap (r, s) multiplies the packed filters of (r, s)
// with the window that starts tap_positions[r, s] further.
#pragma once

#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_window/window_load.cuh"
#include "engines/cuda_window/window_store.cuh"

namespace convx {

// Threads by role, and the registers each role has.
template <TensorMath kMath, int kColumns>
struct WgmmaBlock {
  static constexpr int kThreads = count_threads(kMath, kColumns);
  static constexpr int kMultipliers = 256;
  static constexpr int kLoaders = kThreads - kMultipliers - 32;
  // Together what the block starts with, 128 or 168 per thread: asking for more would wait for
  // ever.
  static constexpr bool kManySums = count_sums(kMath, kColumns) > 80;
  static constexpr bool kTight = kManySums && kThreads == 512;
  static constexpr int kMultiplierRegisters = kManySums ? 200 : 152;
  static constexpr int kLoaderRegisters = kTight ? 56 : 104;
  static constexpr int kBatch = kTight ? 2 : 4;  // positions that a loading thread turns at a time
};

// Shared-memory addresses of a block's barriers and rings.
struct WgmmaRings {
  // Barriers, 8 bytes each.
  uint32_t raw_full, raw_empty, source_full, source_empty, filter_full, filter_empty;
  uint32_t raw, source, filters;
  uint32_t raw_stage_bytes, source_stage_bytes, filter_stage_bytes, tap_bytes;

  __device__ __forceinline__ WgmmaRings(const WindowParams& p, uint32_t memory, int planes,
                                        int element_bytes) {
    raw_full = memory;
    raw_empty = raw_full + 8 * p.raw_stages;
    source_full = raw_empty + 8 * p.raw_stages;
    source_empty = source_full + 8 * p.source_stages;
    filter_full = source_empty + 8 * p.source_stages;
    filter_empty = filter_full + 8 * p.filter_stages;
    raw = memory + p.raw_offset;
    source = memory + p.source_offset;
    raw_stage_bytes = p.raw_pitch * p.raw_channels * element_bytes;
    filters = memory + p.filter_offset;
    source_stage_bytes = p.plane_bytes * planes;
    tap_bytes = p.filter_groups * planes * kWindowFilters * p.lane_bytes;
    filter_stage_bytes = p.stage_taps * tap_bytes;
  }

  __device__ __forceinline__ void init(const WindowParams& p, int loader_warps) const {
    constexpr int kMultiplierWarps = 8;
    for (int i = 0; i < p.raw_stages; ++i) {
      init_barrier(raw_full + 8 * i, loader_warps);
      init_barrier(raw_empty + 8 * i, loader_warps);
    }
    for (int i = 0; i < p.source_stages; ++i) {
      init_barrier(source_full + 8 * i, loader_warps);
      init_barrier(source_empty + 8 * i, kMultiplierWarps);
    }
    for (int i = 0; i < p.filter_stages; ++i) {
      init_barrier(filter_full + 8 * i, 1);
      init_barrier(filter_empty + 8 * i, kMultiplierWarps);
    }
    fence_barrier_init();
  }
};

// The reduction of a tile: sums of 64 filters by kColumns positions.
template <TensorMath kMath, int kColumns>
class WgmmaMultiplier {
  using Operand = typename TensorTypes<kMath>::Operand;
  using Mma = Wgmma<Operand, kColumns>;
  static constexpr bool kSplit = kMath == TensorMath::kIeee;
  static constexpr int kPlanes = WindowUnit<kMath>::kPlanes;

 public:
  __device__ __forceinline__ WgmmaMultiplier(const WindowParams& p, const WgmmaRings& rings,
                                             const int* taps, int warpgroup)
      : p_(p),
        rings_(rings),
        taps_(taps),
        upper_(upper_descriptor(p.lane_bytes)),
        leader_((threadIdx.x & 31) == 0),
        warpgroup_(warpgroup) {
    const bool same_window = p.filter_groups == 2;
    filter_start_ = same_window ? warpgroup * kPlanes * kWindowFilters * p.lane_bytes / 16 : 0;
    source_start_ = same_window ? 0 : warpgroup * p.second_offset * (p.lane_bytes / 16);
    if (p.lead > 0 && warpgroup == 1) wait_at_barrier<1, 256>();
  }

  // Leaves the sums in totals.
  __device__ __forceinline__ void reduce(const TilePlace& tile, WgmmaSums<kColumns>& totals) {
    WgmmaSums<kColumns> chain;  // where chains are short; else totals takes everything
    WgmmaSums<kColumns>& sums = kSplit ? chain : totals;
    if constexpr (kSplit) {
#pragma unroll
      for (float& total : totals.value) total = 0;
    }
    // A step takes 32 of lane_bytes.
    const int step_channels = p_.chunk_channels * 32 / p_.lane_bytes;
    accumulate_ = 0;
    filter_pending_ = source_pending_ = -1;
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      const int channels = min(p_.chunk_channels, p_.channels - chunk * p_.chunk_channels);
      const int steps = (channels + step_channels - 1) / step_channels;
      wait_barrier(rings_.source_full + 8 * source_.slot, source_.parity);
      const uint32_t b_start =
          lower_descriptor(rings_.source + source_.slot * rings_.source_stage_bytes) +
          source_start_;
      for (int first_tap = 0; first_tap < p_.taps; first_tap += p_.stage_taps) {
        wait_barrier(rings_.filter_full + 8 * filter_.slot, p_.resident ? 0 : filter_.parity);
        const int* taps = taps_ + first_tap;
        const int count = min(p_.stage_taps, p_.taps - first_tap);
        for (int step = 0; step < steps; ++step) {
          const uint32_t a =
              lower_descriptor(rings_.filters + filter_.slot * rings_.filter_stage_bytes) +
              filter_start_ + 2 * step;
          const uint32_t b = b_start + 2 * step;
          int tap = 0;
          for (; tap + 4 <= count; tap += 4) multiply_batch<4>(sums, totals, a, b, taps, tap);
          const int left = count - tap;
          if (left == 3) multiply_batch<3>(sums, totals, a, b, taps, tap);
          if (left == 2) multiply_batch<2>(sums, totals, a, b, taps, tap);
          if (left == 1) multiply_batch<1>(sums, totals, a, b, taps, tap);
        }
        filter_pending_ = filter_.slot;
        filter_.advance(p_.filter_stages);
        start_follower();
      }
      source_pending_ = source_.slot;
      source_.advance(p_.source_stages);
    }
    wait_wgmma<0>();
    give_back();
  }

 private:
  // A step of kCount taps in one group, without a branch between them: only then do the tensor
  // cores get the next group while they work on this one.
  template <int kCount>
  __device__ __forceinline__ void multiply_batch(WgmmaSums<kColumns>& sums,
                                                 WgmmaSums<kColumns>& totals, uint32_t a_start,
                                                 uint32_t b_start, const int* taps, int tap) {
    uint32_t a[kCount], b[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      a[i] = a_start + (tap + i) * (rings_.tap_bytes / 16);
      b[i] = b_start + taps[tap + i];
    }
    __syncwarp();  // storing leaves lanes apart, and wgmma wants them together
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < kCount; ++i) multiply(sums, a[i], b[i], i == 0 ? accumulate_ : 1);
    commit_wgmma();
    accumulate_ = 1;
    if constexpr (kSplit) {
      wait_wgmma<0>();
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) totals.value[i] += sums.value[i];
      accumulate_ = 0;
    } else {
      wait_wgmma<1>();
    }
    give_back();
  }

  __device__ __forceinline__ void multiply(WgmmaSums<kColumns>& sums, uint32_t a, uint32_t b,
                                           int accumulate) {
    if constexpr (kSplit) {
      // Small products first. Those of parts 1 and 2, 2 and 1, 2 and 2 are below float32's
      // rounding.
      const uint32_t a_plane = kWindowFilters * p_.lane_bytes / 16;
      const uint32_t b_plane = p_.plane_bytes / 16;
      product(sums, a + 2 * a_plane, b, accumulate);
      product(sums, a, b + 2 * b_plane, 1);
      product(sums, a + a_plane, b + b_plane, 1);
      product(sums, a + a_plane, b, 1);
      product(sums, a, b + b_plane, 1);
      product(sums, a, b, 1);
    } else {
      product(sums, a, b, accumulate);
    }
  }

  __device__ __forceinline__ void product(WgmmaSums<kColumns>& sums, uint32_t a, uint32_t b,
                                          int accumulate) {
    Mma::multiply(sums, join_descriptor(a, upper_), join_descriptor(b, upper_), accumulate);
  }

  // Stages whose last group has been waited for go back to those who fill them.
  __device__ __forceinline__ void give_back() {
    if (leader_) {
      if (filter_pending_ >= 0 && !p_.resident) arrive(rings_.filter_empty + 8 * filter_pending_);
      if (source_pending_ >= 0) arrive(rings_.source_empty + 8 * source_pending_);
    }
    filter_pending_ = source_pending_ = -1;
  }

  // The second warpgroup starts some stages late, so that one stores while the other multiplies.
  __device__ __forceinline__ void start_follower() {
    if (warpgroup_ == 0 && ++stages_done_ == p_.lead) {
      pass_barrier<1, 256>();
    }
  }

  const WindowParams& p_;
  const WgmmaRings& rings_;
  const int* taps_;
  const uint32_t upper_;
  const bool leader_;
  const int warpgroup_;
  uint32_t filter_start_, source_start_;  // in 16-byte pieces
  RingCursor source_, filter_;
  int filter_pending_ = -1, source_pending_ = -1;
  int accumulate_ = 0;
  int stages_done_ = 0;
};

// One thread starts the copies of packed filters.
__device__ __forceinline__ void copy_filters(const WindowParams& p, const WgmmaRings& rings) {
  RingCursor cursor;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const TilePlace place = locate_tile(p, tile);
    for (int chunk = place.chunk; chunk < place.chunk_end; ++chunk) {
      const char* from =
          static_cast<const char*>(p.packed) +
          (static_cast<int64_t>(place.filter_tile) * p.chunks + chunk) * p.taps * rings.tap_bytes;
      for (int tap = 0; tap < p.taps; tap += p.stage_taps) {
        const uint32_t bytes = min(p.stage_taps, p.taps - tap) * rings.tap_bytes;
        const uint32_t full = rings.filter_full + 8 * cursor.slot;
        wait_barrier(rings.filter_empty + 8 * cursor.slot, cursor.parity ^ 1);
        arrive_expecting(full, bytes);
        bulk_copy(rings.filters + cursor.slot * rings.filter_stage_bytes, from, bytes, full);
        from += bytes;
        cursor.advance(p.filter_stages);
      }
    }
    if (p.resident) return;
  }
}

// Keeps the ring of raw planes full, ahead of those who turn them; called by all warps that do.
template <typename Source, int kWarps>
class PlaneFeeder {
 public:
  __device__ __forceinline__ PlaneFeeder(const WindowParams& p, const WgmmaRings& rings,
                                         const WindowTables& tables, int warp)
      : p_(p),
        rings_(rings),
        copier_(p, tables, warp),
        folded_(p.load == WindowLoad::kFolded),
        tile_(blockIdx.x) {
    enter_tile();
    for (int i = 0; i + 1 < p.raw_stages; ++i) fill_next();
  }

  // Starts the copies of the next stage, once everyone has done with what it held. Folded taps take
  // all their channels from one stage.
  __device__ __forceinline__ void fill_next() {
    if (tile_ >= p_.tiles) return;
    wait_barrier(rings_.raw_empty + 8 * cursor_.slot, cursor_.parity ^ 1);
    const int channels =
        folded_ ? p_.raw_channels : min(p_.raw_channels, p_.channels - chunk_ * p_.raw_channels);
    copier_.copy(rings_.raw + cursor_.slot * rings_.raw_stage_bytes,
                 rings_.raw_full + 8 * cursor_.slot, channels);
    cursor_.advance(p_.raw_stages);
    if (!folded_ && ++chunk_ < chunk_end_) return;
    tile_ += gridDim.x;
    enter_tile();
  }

 private:
  __device__ __forceinline__ void enter_tile() {
    if (p_.raw_stages == 0) tile_ = p_.tiles;
    if (tile_ >= p_.tiles) return;
    const TilePlace place = locate_tile(p_, tile_);
    chunk_ = place.chunk;
    chunk_end_ = place.chunk_end;
    copier_.start_tile(place);
  }

  const WindowParams& p_;
  const WgmmaRings& rings_;
  SpanCopier<Source, kWarps> copier_;
  RingCursor cursor_;
  const bool folded_;
  int tile_, chunk_ = 0, chunk_end_ = 0;
};

template <TensorMath kMath, int kColumns>
__global__ void __launch_bounds__(WgmmaBlock<kMath, kColumns>::kThreads, 1)
    wgmma_kernel(const __grid_constant__ WindowParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Element = typename TensorTypes<kMath>::Element;
  using Block = WgmmaBlock<kMath, kColumns>;
  extern __shared__ char unaligned[];
  const uint32_t start = shared_address(unaligned);
  char* const memory = unaligned + ((1024 - (start & 1023)) & 1023);
  const WgmmaRings rings(p, shared_address(memory), WindowUnit<kMath>::kPlanes, sizeof(Element));
  const WindowTables tables(p, memory);
  fill_window_tables(p, tables, memory, sizeof(Element));
  if (threadIdx.x == 0) rings.init(p, Block::kLoaders / 32);
  __syncthreads();

  const int warp = threadIdx.x / 32;
  if (warp < 8) {
    take_registers<Block::kMultiplierRegisters>();
    const int warpgroup = __shfl_sync(0xffffffff, warp / 4, 0);
    WgmmaMultiplier<kMath, kColumns> multiplier(p, rings, tables.taps, warpgroup);
    char* const staging = memory + p.staging_offset + warp * staging_bytes(kColumns);
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
      const TilePlace place = locate_tile(p, tile);
      WgmmaSums<kColumns> sums;
      multiplier.reduce(place, sums);
      const bool same_window = p.filter_groups == 2;
      const int window = place.first + (same_window ? 0 : warpgroup * p.second_window);
      const int filter = place.filter + (same_window ? warpgroup * 64 : 0) + (warp & 3) * 16;
      const Element* bias = static_cast<const Element*>(p.bias);
      if (bias != nullptr) bias += place.group * p.group_targets;
      constexpr bool kExact = kMath == TensorMath::kIeee;
      const auto store = [&]<typename Out>(const StoreTarget<Out>& target, const Element* add) {
        WindowStorer<kColumns, kExact, Out, Element>(p, target, place, window, filter, add,
                                                     reinterpret_cast<Out*>(staging))
            .store(sums.value);
      };
      const StoreTarget<Element> whole{static_cast<Element*>(p.target), p.target_n, p.target_c,
                                       p.target_h, p.target_w};
      const int64_t plane = static_cast<int64_t>(p.target_height) * p.target_width;
      const StoreTarget<float> part{p.partials + place.split * p.partial_stride,
                                    p.partial_stride / p.images, plane, p.target_width, 1};
      const bool is_part = p.partials != nullptr;
      if constexpr (sizeof(Element) == 4) {  // one copy of the code for both
        StoreTarget<float> target = whole;
        if (is_part) target = part;
        store(target, is_part ? nullptr : bias);
      } else if (is_part) {
        store(part, nullptr);
      } else {
        store(whole, bias);
      }
    }
  } else {
    give_registers<Block::kLoaderRegisters>();
    if (warp < 8 + Block::kLoaders / 32) {
      WindowLoader<kMath, Block::kLoaders, Block::kBatch> loader(p, tables,
                                                                 threadIdx.x - Block::kMultipliers);
      PlaneFeeder<typename WindowUnit<kMath>::Source, Block::kLoaders / 32> feeder(p, rings, tables,
                                                                                   warp - 8);
      RingCursor cursor, raw;
      const bool leader = (threadIdx.x & 31) == 0;
      for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const TilePlace place = locate_tile(p, tile);
        loader.start_tile(place);
        for (int chunk = place.chunk; chunk < place.chunk_end; ++chunk) {
          const bool per_chunk = p.load != WindowLoad::kFolded;
          const bool first = per_chunk || chunk == place.chunk;
          const bool last = per_chunk || chunk + 1 == place.chunk_end;
          if (p.raw_stages > 0 && first) {
            feeder.fill_next();
            wait_barrier(rings.raw_full + 8 * raw.slot, raw.parity);
          }
          wait_barrier(rings.source_empty + 8 * cursor.slot, cursor.parity ^ 1);
          loader.load_chunk(rings.source + cursor.slot * rings.source_stage_bytes,
                            rings.raw + raw.slot * rings.raw_stage_bytes, chunk);
          fence_async_proxy();
          __syncwarp();
          if (leader) arrive(rings.source_full + 8 * cursor.slot);
          cursor.advance(p.source_stages);
          if (p.raw_stages > 0 && last) {
            if (leader) arrive(rings.raw_empty + 8 * raw.slot);
            raw.advance(p.raw_stages);
          }
        }
      }
    } else if ((threadIdx.x & 31) == 0) {
      copy_filters(p, rings);
    }
  }
#endif
}

}  // namespace convx
