// Packs X and dY into the operands that the MMAs read: 16-bit components, [position][channel].
//
// A block writes kPackedBlockBytes of one tile: 64 to 256 positions, all channels of a packed row,
// which are 8 items (load_item.cuh), one for each warp. It assembles them in shared memory,
// swizzled as wgmma wants them, and stores them with one bulk copy per component: global memory has
// the same order.
//
// Shared memory: one block of kPackedBlockBytes per component. Memory bandwidth limits the kernel.
#pragma once

#include "device/async_copy.cuh"
#include "device/dependent_launch.cuh"
#include "device/mbarrier.cuh"
#include "engines/cuda/weight_grad/load_item.cuh"
#include "kernels/run_flag.cuh"

namespace convx {

inline constexpr int kPackThreads = 256;
static_assert(kPackedBlockBytes == kPackThreads * 2 * 16, "two units per thread");

// Loads one item, packs it, and stores it at its place of the block in shared memory. wait(): for
// that memory to be free.
template <typename T, OperandForm kForm, PackedSide kSide, bool kChannelsAdjacent, typename Wait>
__device__ __forceinline__ void pack_own_item(const ItemTensor<T, kSide>& from,
                                              const WgradCall& call, const StrideResidue& residue,
                                              int first, int first_channel, float scale,
                                              int row_bytes, uint32_t shared, const Wait& wait) {
  const int units = row_bytes / 16, warp = static_cast<int>(threadIdx.x) / 32;
  const int stage = warp / units;  // of the block
  const LanePlace<kChannelsAdjacent> place(warp - stage * units, units);
  ItemValues<T> values;
  const int position = first + stage * kStagePositions;
  if (kSide == PackedSide::kInput && from.g.folds_columns) {
    values.load_folded(from, residue, position, first_channel, place);
  } else {
    values.load(from, residue, position, first_channel, place);
  }
  wait();
  PackedItem<kForm> item;
  item.template pack<kChannelsAdjacent>(values, scale, call.scales, units);
  item.store(shared + stage * kStagePositions * row_bytes, kPackedBlockBytes, place, row_bytes);
}

// Packs the blocks of one operand. blocks: [begin, end) of all blocks that the grid packs.
template <typename T, OperandForm kForm, PackedSide kSide>
__device__ __forceinline__ void pack_side(const WgradGeometry& g, const WgradCall& call,
                                          int64_t begin, int64_t end) {
  constexpr bool kIsInput = kSide == PackedSide::kInput;
  constexpr int kComponents = count_components(kForm);
  extern __shared__ char unaligned[];
  const uint32_t shared = (shared_address(unaligned) + 1023) / 1024 * 1024;

  char* const packed = kIsInput ? call.packed_x : call.packed_y;
  const int row_bytes = kIsInput ? g.row_bytes : kGradientRowBytes;
  const int block_rows = kPackedBlockBytes / row_bytes;
  const int64_t tile_rows = kIsInput ? g.input_rows : g.gradient_rows;
  const int tiles = kIsInput ? g.channel_tiles : g.filter_tiles;
  const int residue_tiles = (kIsInput ? g.residue_count : 1) * tiles;
  const int64_t tile_bytes = tile_rows * row_bytes, component_bytes = residue_tiles * tile_bytes;
  const ItemTensor<T, kSide> from(g, call);
  const float scale = find_operand_scale<kForm, kSide>(call);

  // This block's first, in the order of the grid.
  int64_t block = begin + (blockIdx.x + gridDim.x - begin % gridDim.x) % gridDim.x;
  for (; block < end; block += gridDim.x) {
    // Neighbouring blocks are tiles of the same positions, which lie near each other in memory.
    const int64_t of_positions = (block - begin) / residue_tiles;
    const int residue_tile = static_cast<int>(block - begin - of_positions * residue_tiles);
    const int residue = kIsInput ? residue_tile / tiles : 0, tile = residue_tile - residue * tiles;
    const auto first =
        static_cast<int>(call.first_stage * kStagePositions + of_positions * block_rows);
    const auto wait = [] {
      if (threadIdx.x == 0) wait_bulk_reads();  // of the block before
      __syncthreads();
    };
    const int channel = tile * (row_bytes / 2);
    if (from.access.channels_adjacent) {
      pack_own_item<T, kForm, kSide, true>(from, call, g.residues[residue], first, channel, scale,
                                           row_bytes, shared, wait);
    } else {
      pack_own_item<T, kForm, kSide, false>(from, call, g.residues[residue], first, channel, scale,
                                            row_bytes, shared, wait);
    }
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      char* const to = packed + residue_tile * tile_bytes + of_positions * kPackedBlockBytes;
      for (int component = 0; component < kComponents; ++component) {
        bulk_store(to + component * component_bytes, shared + component * kPackedBlockBytes,
                   kPackedBlockBytes);
      }
      commit_bulk_stores();
    }
  }
}

template <typename T, OperandForm kForm>
__global__ void __launch_bounds__(kPackThreads)
    pack_positions_kernel(const __grid_constant__ WgradGeometry g,
                          const __grid_constant__ WgradCall call) {
  wait_for_kernels_before();
  let_next_kernel_start();
  if (__syncthreads_or(must_return(call))) return;  // other blocks may be about to set the flag
  const int64_t input_blocks = g.input_bytes(1) / kPackedBlockBytes;
  const int64_t blocks = input_blocks + g.gradient_bytes(1) / kPackedBlockBytes;
  pack_side<T, kForm, PackedSide::kInput>(g, call, 0, input_blocks);
  pack_side<T, kForm, PackedSide::kGradient>(g, call, input_blocks, blocks);
  if (threadIdx.x == 0) wait_bulk_stores();
}

}  // namespace convx
