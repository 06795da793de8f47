// What the warps of a block do with its tiles, one after the other: eight multiply and stage sums,
// two store them.
#pragma once

#include "engines/cuda_lines/line_walk.cuh"
#include "engines/cuda_lines/sum_stager.cuh"
#include "engines/cuda_lines/sum_storer.cuh"
#include "engines/cuda_lines/window_multiply.cuh"
#include "engines/visit_target.cuh"

namespace convx {

// What one warpgroup has of a tile.
struct TileShare {
  int window, filter;  // first position and filter; the filter within its group

  __device__ __forceinline__ TileShare(const WindowParams& p, const TilePlace& tile,
                                       int warpgroup) {
    const bool same_window = p.filter_groups == 2;
    window = tile.first + (same_window ? 0 : warpgroup * p.second_window);
    filter = tile.filter + (same_window ? warpgroup * kWindowFilters : 0);
  }
};

// Calls visit with where a tile's sums go and the bias to add to them.
template <typename Element, typename Visit>
__device__ __forceinline__ void visit_target(const WindowParams& p, const TilePlace& tile,
                                             const Visit& visit) {
  const Element* bias = static_cast<const Element*>(p.bias);
  if (bias != nullptr) bias += tile.group * p.group_targets;
  const StoreTarget<Element> whole{static_cast<Element*>(p.target), p.target_n, p.target_c,
                                   p.target_h, p.target_w};
  const int64_t plane = static_cast<int64_t>(p.target_height) * p.target_width;
  const StoreTarget<float> part{p.partials + tile.split * p.partial_stride,
                                plane * p.groups * p.group_targets, plane, p.target_width, 1};
  visit_whole_or_part(p.partials != nullptr, whole, part, bias, visit);
}

// Runs that a window may have, and its staging has room for.
template <bool kWalks>
inline constexpr int kRunsOf = kWalks ? kWalkRuns : kMaxRuns;

template <typename Out, int kColumns, int kRuns>
__device__ __forceinline__ Out* find_staging(const WindowParams& p, char* memory, int warpgroup) {
  return reinterpret_cast<Out*>(memory + p.staging_offset) +
         warpgroup * kWindowFilters * kStagingPitch<Out, kColumns, kRuns>;
}

// Multiplies this block's tiles and stages their sums; called by the first 8 warps. spoilt: a flag
// of either warpgroup's sums.
template <TensorMath kMath, int kColumns, bool kWalks>
__device__ __forceinline__ void multiply_tiles(const WindowParams& p, const WindowRings& rings,
                                               const int* taps, char* memory,
                                               volatile int* spoilt) {
  using Reader = std::conditional_t<kWalks, LineReader, StageReader>;
  using Multiplier = WindowMultiplier<kMath, kColumns, Reader>;
  constexpr int kRuns = kRunsOf<kWalks>;
  using Element = typename TensorTypes<kMath>::Element;
  const int warp = threadIdx.x / 32;
  const int warpgroup = __shfl_sync(0xffffffff, warp / 4, 0);
  uint32_t parity = 1;  // of the staging's next turn to be empty
  const TileRange tiles = find_tiles<kWalks>(p);
  Multiplier multiplier(p, rings, taps, warpgroup, tiles);
  TilePlace next = locate_tile<kWalks>(p, tiles.first);
  for (int index = tiles.first; index < tiles.end; index += tiles.step) {
    const TilePlace tile = next;
    WgmmaSums<kColumns> sums;
    typename Multiplier::Chains chains;
    multiplier.multiply(tile, chains, sums);
    // What comes before finish costs nothing: the last products are on their way.
    next = locate_tile<kWalks>(p, index + tiles.step);
    const TileShare share(p, tile, warpgroup);
    const int first_filter = (warp & 3) * 16;  // of the warp
    visit_target<Element>(
        p, tile, [&]<typename Out>(const StoreTarget<Out>& target, const Element* bias) {
          Out* const staging = find_staging<Out, kColumns, kRuns>(p, memory, warpgroup);
          SumStager<kMath, kColumns, kRuns, Out, Element> stager(
              p, target, share.window, tile.group, share.filter + first_filter, bias, staging);
          multiplier.finish(chains, sums, index + tiles.step < tiles.end);
          stager.add_bias(sums.value);
          const auto hand_over = [&]<int kPart>() {
            wait_barrier(rings.staging_empty + 8 * warpgroup, parity);
            parity ^= 1;
            if (stager.template stage<kPart>(sums.value)) spoilt[warpgroup] = 1;
            fence_async_proxy();  // of every thread's sums, before their copies
            arrive(rings.staging_full + 8 * warpgroup);
          };
          hand_over.template operator()<0>();
          if constexpr (kParts<Out, kColumns> == 2) {
            stager.start_part(1);
            hand_over.template operator()<1>();
          }
        });
  }
}

// Stores what a warpgroup stages; called by one warp each. target_map: for boxes.
template <TensorMath kMath, int kColumns, bool kWalks>
__device__ __forceinline__ void store_tiles(const WindowParams& p, const WindowRings& rings,
                                            char* memory, const void* target_map,
                                            volatile int* spoilt, int warpgroup) {
  using Element = typename TensorTypes<kMath>::Element;
  constexpr bool kExact = kMath == TensorMath::kIeee;
  constexpr int kRuns = kRunsOf<kWalks>;
  const uint32_t full = rings.staging_full + 8 * warpgroup;
  const uint32_t empty = rings.staging_empty + 8 * warpgroup;
  uint32_t parity = 0;
  const auto wait = [&] {
    wait_barrier(full, parity);
    return kExact && spoilt[warpgroup] != 0;
  };
  const auto give_back = [&] {
    parity ^= 1;
    __syncwarp();
    if (kExact && (threadIdx.x & 31) == 0) spoilt[warpgroup] = 0;
    arrive(empty);
  };
  const TileRange tiles = find_tiles<kWalks>(p);
  for (int index = tiles.first; index < tiles.end; index += tiles.step) {
    const TilePlace tile = locate_tile<kWalks>(p, index);
    const TileShare share(p, tile, warpgroup);
    visit_target<Element>(
        p, tile, [&]<typename Out>(const StoreTarget<Out>& target, const Element* bias) {
          const SumStorer<kMath, kColumns, kRuns, Out, Element> storer(
              p, target, tile, share.window, share.filter, bias,
              find_staging<Out, kColumns, kRuns>(p, memory, warpgroup), target_map);
#pragma unroll 1
          for (int part = 0; part < kParts<Out, kColumns>; ++part) {
            storer.store(part, wait);
            give_back();
          }
        });
  }
  if (elect_lane()) wait_bulk_stores();
}

}  // namespace convx
