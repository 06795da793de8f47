// Convolution as a gather, on channels_last tensors and on 1x1 layers of NCHW tensors (wgmma, TMA):
//
//     target[pixel][filter] = bias[filter] + sum over taps t and channels c of
//                             source[pixel * step + offset(t)][c] * filters[filter][t][c]
//
// A tile is up to 128 target pixels, a box of them or consecutive ones (flat tiles), by kFilters
// filters (64, 128, 192 or 256); with kPieces == 2 it is two pieces of 128 pixels, which share the
// filters. boxes_shape.h describes the stages.
//
//     stage (one tap, one chunk)                         accumulators
//     pixels [128][128 bytes]  x  filters [kFilters]     warpgroup 0: [pixels 0 to 63][kFilters]
//                                 [128 bytes]            warpgroup 1: [pixels 64 to 127][kFilters]
//
// - Warpgroups 0 and 1 are the consumers: they issue the MMAs and run the epilogue. In tiles of two
//   pieces (channels_last) each has a piece for itself, two halves of 64 pixels. Warpgroup 1
//   follows warpgroup 0 by kBoxLead stages, so that one stores while the other multiplies:
//
//     warpgroup 0   MMAs of tile 0      | store | MMAs of tile 1      | store | ...
//     warpgroup 1        | MMAs of tile 0      | store | MMAs of tile 1      | ...
//
// - In warpgroup 2, one warp is the producer (all four warps for BoxForm::kSpans). It also tells
//   the consumers which tile a stage belongs to, because blocks are persistent.
//
// Shared memory: 2 KiB of barriers and bias, two epilogue buffers of staging_bytes (16 KiB for
// channels_last), and a ring of 2 to 8 stages of pixel_bytes + 128 bytes per filter. If all filters
// of a tile fit, they are loaded once per block and stages hold pixels only.
//
// The limit is the number of 128-byte rows that TMA moves: about 2 cycles per row on an H200
// (boxes_cost.cpp).
#pragma once

#include "device/dependent_launch.cuh"
#include "engines/cuda/boxes/boxes_copy.cuh"
#include "engines/cuda/boxes/boxes_multiply.cuh"
#include "engines/cuda/boxes/boxes_spans.cuh"
#include "engines/cuda/boxes/boxes_store.cuh"
#include "planning/boxed_tensor.h"

namespace convx {

struct BoxesMaps {
  TensorMap source, filters;
  TensorMap target[kMaxBoxPhases];
};

// The producer, fragment loader and epilogue of each tensor form.
template <TensorMath kMath, BoxForm kForm, int kPieces>
struct BoxParts;
template <TensorMath kMath, int kPieces>
struct BoxParts<kMath, BoxForm::kPixels, kPieces> {
  using Source = PixelCopy<kMath, kPieces>;
  using Loader = NoFragments;
  using Staging = PixelStaging<kMath, kPieces>;
};
template <TensorMath kMath>
struct BoxParts<kMath, BoxForm::kLines, 1> {
  using Source = LineCopy<kMath>;
  using Loader = LineFragments<kMath>;
  using Staging = LineStaging<kMath>;
};
template <TensorMath kMath, int kPieces>
struct BoxParts<kMath, BoxForm::kImages, kPieces> {
  using Source = ImageCopy<kMath>;
  using Loader = ImageFragments<kMath, kPieces, false>;
  using Staging = ImageStaging<kMath, kPieces, false>;
};
template <TensorMath kMath, int kPieces>
struct BoxParts<kMath, BoxForm::kPairs, kPieces> {
  using Source = ImageCopy<kMath>;
  using Loader = ImageFragments<kMath, kPieces, true>;
  using Staging = ImageStaging<kMath, kPieces, true>;
};
template <TensorMath kMath>
struct BoxParts<kMath, BoxForm::kSpans, 1> {
  using Source = SpanCopy<kMath>;
  using Loader = SpanFragments<kMath>;
  using Staging = SpanStaging<kMath>;
};

// kColumns: filters are read as BoxFilters::kColumns.
template <TensorMath kMath, int kFilters, BoxForm kForm, int kPieces, bool kColumns>
__global__ void __launch_bounds__(kBoxThreads, most_boxes_per_sm(kFilters, kPieces))
    boxes_kernel(const __grid_constant__ BoxesParams p, const __grid_constant__ BoxesMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  const BoxesRing ring(p, align_ring(unaligned));
  using Parts = BoxParts<kMath, kForm, kPieces>;
  constexpr int kCopyWarps = Parts::Source::kWarps;
  constexpr bool kByLanes = kCopyWarps > 1;
  // If TMA fills the stages, one lane arrives for its warp. Otherwise every lane that writes or
  // reads a stage arrives itself.
  if (threadIdx.x == 0) {
    constexpr int kLanes = 32 * kCopyWarps * (kByLanes ? kLaneArrivals : 1);
    const bool by_lanes = kByLanes || !p.boxed_source;
    ring.init(p, by_lanes ? 1 + kLanes : 1, by_lanes ? kBoxMultipliers : kBoxMultipliers / 32);
  }
  wait_for_kernels_before();
  let_next_kernel_start();
  __syncthreads();
  // Registers per thread. The block starts with 80 per thread where two blocks share a
  // multiprocessor, and with 168 otherwise; the consumers take the registers that the producer
  // warpgroup releases. Lanes that copy spans need 16 more than a warp that only issues TMA.
  constexpr bool kShares = most_boxes_per_sm(kFilters, kPieces) == 2;
  constexpr int kKept = (kShares ? 32 : 40) + (kByLanes ? 16 : 0);
  constexpr int kTaken = ((kShares ? 80 : 168) * kBoxThreads - kKept * 128) / kBoxMultipliers;
  if (threadIdx.x < kBoxMultipliers) {
    take_registers<kTaken>();
    BoxMultiplier<kMath, kFilters, kPieces, typename Parts::Loader, typename Parts::Source,
                  kColumns>
        multiplier(p, ring);
    BoxStorer<typename Parts::Staging, kFilters, kPieces, has_own_pieces(kForm, kPieces)> storer(
        p, ring, maps.target);
    multiplier.take_filters();
#pragma unroll 1
    for (int index; (index = multiplier.find_tile()) < p.tiles;) {
      WgmmaSums<kFilters> sums[kPieces];
      const WorkItem item(p, index);
      const int filter = locate_filter(p, item.tile, kFilters);
      storer.load_bias(filter);
      if constexpr (kForm == BoxForm::kPixels) {
        if (p.phases[item.phase].taps == 0) {
          multiplier.skip_stage();
          storer.store_zeros(item.tile, filter);
          continue;
        }
      }
      multiplier.multiply(sums, item);
      if constexpr (kFilters <= most_split_filters(kForm)) {
        if (item.slice >= 0) {
          store_slice_sums(p, sums, item.slice);
          continue;
        }
      }
      storer.store(sums, item.tile, filter);
    }
    storer.finish();
  } else {
    give_registers<kKept>();
    if (threadIdx.x < kBoxMultipliers + 32 * kCopyWarps) {
      copy_boxes<typename Parts::Source, kFilters, box_chunk(kMath), kColumns>(
          p, ring, &maps.source, &maps.filters);
    }
  }
#endif
}

// Second kernel of split-K: adds the slices of a tile in order and runs the epilogue. Grid: x is
// a tile whose reduction was split, y is a group of kSliceFilters of its filters.
template <TensorMath kMath, BoxForm kForm, int kPieces>
__global__ void __launch_bounds__(kBoxMultipliers)
    add_slices_kernel(const __grid_constant__ BoxesParams p,
                      const __grid_constant__ BoxesMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  const BoxesRing ring(p, align_ring(unaligned));
  using Staging = typename BoxParts<kMath, kForm, kPieces>::Staging;
  constexpr int kFilters = Staging::kSliceFilters;
  BoxStorer<Staging, kFilters, kPieces, has_own_pieces(kForm, kPieces)> storer(p, ring,
                                                                               maps.target);
  wait_for_kernels_before();
  let_next_kernel_start();
  const int split_tile = static_cast<int>(blockIdx.x), tile = p.whole_tiles + split_tile;
  const int own = static_cast<int>(blockIdx.y) * kFilters;  // first filter within the tile
  const int filter = locate_filter(p, tile, p.tile_filters) + own;
  if (filter >= p.group_targets) return;
  storer.load_bias(filter);
  WgmmaSums<kFilters> sums[kPieces];
  add_slices(p, sums, split_tile, own);
  storer.store(sums, tile, filter);
  storer.finish();
#endif
}

}  // namespace convx
