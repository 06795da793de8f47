// The main loops of blocks that take tiles from anywhere (Pace::kTiles): multiply_tiles for the MMA
// warpgroups, store_tiles for the store warps.
#pragma once

#include "engines/cuda/lines/staging_turns.cuh"
#include "engines/cuda/lines/sum_stager.cuh"
#include "engines/cuda/lines/sum_storer.cuh"
#include "engines/cuda/lines/window_multiply.cuh"
#include "kernels/visit_target.cuh"

namespace convx {

// Calls visit(target, bias) with the place that the tile's results go to, and the bias to add.
template <typename Element, typename Visit>
__device__ __forceinline__ void visit_target(const WindowParams& p, const TilePlace& tile,
                                             const Visit& visit) {
  const Element* bias = static_cast<const Element*>(p.bias);
  if (bias != nullptr) bias += tile.group * p.group_targets;
  const int64_t plane = static_cast<int64_t>(p.target_height) * p.target_width;
  const StoreTarget<float> part{p.partials + tile.split * p.partial_stride,
                                plane * p.groups * p.group_targets, plane, p.target_width, 1};
  visit_whole_or_part(p.partials != nullptr, find_whole_target<Element>(p), part, bias, visit);
}

// Computes the block's tiles and stages their accumulators. Called by the two MMA warpgroups.
// spoilt[warpgroup] is set if some staged accumulators must be recomputed.
template <TensorMath kMath, int kColumns>
__device__ __forceinline__ void multiply_tiles(const WindowParams& p, const WindowRings& rings,
                                               const int* taps, char* memory,
                                               volatile int* spoilt) {
  using Multiplier = WindowMultiplier<kMath, kColumns, StageReader>;
  using Element = typename TensorTypes<kMath>::Element;
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  StagingTurns turns(rings, warpgroup);
  const TileRange tiles = find_tiles<false>(p);
  Multiplier multiplier(p, rings, taps, warpgroup, tiles);
  TilePlace next = locate_tile(p, tiles.first);
  for (int index = tiles.first; index < tiles.end; index += tiles.step) {
    const TilePlace tile = next;
    WgmmaSums<kColumns> sums;
    typename Multiplier::Chains chains;
    const bool more = index + tiles.step < tiles.end;
    multiplier.multiply(tile, chains, sums, more);
    // Work between multiply and finish overlaps with the last MMAs.
    next = locate_tile(p, index + tiles.step);
    const TileShare share(p, tile, warpgroup);
    const auto stage = [&]<typename Out>(const StoreTarget<Out>& target, const Element* bias) {
      SumStager<kMath, kColumns, Pace::kTiles, Out, Element> stager(
          p, target, tile.group, share.filter, bias,
          find_staging<Out, kColumns, Pace::kTiles>(p, memory, warpgroup));
      stager.start_window(share.window);
      multiplier.finish(chains, sums);
      stager.add_bias(sums.value);
      stager.visit_parts([&]<int kPart>() {
        turns.wait();
        if (stager.template stage<kPart>(sums.value)) spoilt[warpgroup] = 1;
        turns.hand_over();
      });
    };
    visit_target<Element>(p, tile, stage);
  }
}

// Stores the results that one warpgroup has staged. Called by one warp per warpgroup. target_map:
// for stores by TMA.
template <TensorMath kMath, int kColumns>
__device__ __forceinline__ void store_tiles(const WindowParams& p, const WindowRings& rings,
                                            char* memory, const void* target_map,
                                            volatile int* spoilt, int warpgroup) {
  using Element = typename TensorTypes<kMath>::Element;
  constexpr bool kExact = kMath == TensorMath::kIeee;
  StoringTurns turns(rings, warpgroup);
  const auto wait = [&] {
    turns.wait();
    return kExact && spoilt[warpgroup] != 0;
  };
  const auto give_back = [&] {
    __syncwarp();
    if (kExact && (threadIdx.x & 31) == 0) spoilt[warpgroup] = 0;
    turns.give_back();
  };
  const TileRange tiles = find_tiles<false>(p);
  for (int index = tiles.first; index < tiles.end; index += tiles.step) {
    const TilePlace tile = locate_tile(p, index);
    const TileShare share(p, tile, warpgroup);
    visit_target<Element>(
        p, tile, [&]<typename Out>(const StoreTarget<Out>& target, const Element* bias) {
          const SumStorer<kMath, kColumns, Pace::kTiles, Out, Element> storer(
              p, target, tile, share.window, share.filter, bias,
              find_staging<Out, kColumns, Pace::kTiles>(p, memory, warpgroup), target_map);
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
