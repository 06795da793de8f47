// The kernel that runs before lines_kernel: it packs the filters (pack_filters.cuh) and writes the
// lines to the workspace (turn_source.cuh).
//
// Blocks of 256 threads. The first pack_blocks blocks each pack a chunk of a few filters; the
// others each write kTurnedWords words per component of a line:
//
//   NCHW            32 lanes read 32 neighbouring pixels -> shared memory -> 16-byte stores
//   channels_last   each thread converts 16 bytes of a position in registers
//
// Shared memory: [component][positions][kWords + 1] words and the positions' source offsets, or up
// to 32 KiB of float32 filters (more if a single filter needs it).
#pragma once

#include "core/arithmetic.h"
#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "engines/cuda/lines/turn_source.cuh"
#include "kernels/run_flag.cuh"

namespace convx {

// How blocks are numbered: first those that pack filters, [chunk][row block], none if the filters
// are packed already; then those that write lines, [line][word block][position block].
struct PrepareGrid {
  int packed_rows;  // filters that a block packs
  FastDivmod by_row_blocks;
  int pack_blocks;
  int blocks;
  FastDivmod by_position_blocks, by_word_blocks;
};

// True if the grid may have fewer blocks than there is work for, each of which loops. Exact kernels
// behind scaled fp16 do this: they mostly return early because of their flag, and launching all
// blocks would take long. The loop makes preparing 4% slower.
template <TensorMath kMath>
inline constexpr bool kTakesTurns = kMath == TensorMath::kTf32 || kMath == TensorMath::kIeee;

template <TensorMath kMath, int kWords>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ WindowParams p,
                   const __grid_constant__ PrepareGrid grid) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // like the kernels that read the results
  wait_for_kernels_before();
  let_next_kernel_start();
  if (__syncthreads_or(must_return(p))) return;  // other blocks may be about to set the flag
  using Turner = SourceTurner<kMath, kWords>;
  extern __shared__ __align__(16) char memory[];
  const auto prepare_block = [&](int block) {
    if (block < grid.pack_blocks) {
      const int row_block = grid.by_row_blocks.split(block);  // leaves the chunk in block
      pack_filters<kMath>(p, grid.packed_rows, row_block, block, reinterpret_cast<float*>(memory));
      return;
    }
    block -= grid.pack_blocks;
    const int position_block = grid.by_position_blocks.split(block);
    const int word_block = grid.by_word_blocks.split(block);  // leaves the line in block
    Turner turner(p, *reinterpret_cast<typename Turner::Shared*>(memory), position_block,
                  word_block, block);
    if (p.source_c == 1) {
      turner.copy_channels();
    } else {
      turner.turn_planes();
    }
  };
  if constexpr (!kTakesTurns<kMath>) {
    prepare_block(blockIdx.x);
  } else {
#pragma unroll 1
    for (int block = blockIdx.x; block < grid.blocks; block += gridDim.x) {
      prepare_block(block);
      __syncthreads();  // the next iteration overwrites shared memory
    }
  }
#endif
}

template <TensorMath kMath, int kWords>
void prepare_words(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
                   bool pack) {
  constexpr int64_t kTurnBytes = sizeof(typename SourceTurner<kMath, kWords>::Shared);
  constexpr int64_t kPackBytes = 32 << 10;
  constexpr int64_t kEnoughBlocks = 256;  // so that all SMs have some
  constexpr int kSomeBlocks = 1024;
  PrepareGrid grid{};
  int64_t shared_bytes = kTurnBytes;
  if (pack) {
    const int64_t row_bytes = int64_t{4} * params.chunk_channels * params.taps;
    const int64_t filters =
        int64_t{kWindowFilters} * shape.filter_groups * shape.filter_tiles * site.problem->groups;
    int rows = 8;
    while (rows > 1 &&
           (rows * row_bytes > kPackBytes || filters / rows * params.chunks < kEnoughBlocks)) {
      rows /= 2;
    }
    grid.packed_rows = rows;
    grid.by_row_blocks = FastDivmod(filters / rows);
    grid.pack_blocks = static_cast<int>(filters / rows * params.chunks);
    shared_bytes = std::max(shared_bytes, rows * row_bytes);
  }
  // 0 for streaming blocks and for tiles that TMA reads: they have no lines.
  const int64_t positions = ceil_div(params.line_positions, kTurnedWords / kWords);
  const int64_t words = ceil_div(int64_t{params.slabs} * params.lane_bytes / 4, kWords);
  grid.by_position_blocks = FastDivmod(std::max<int64_t>(1, positions));
  grid.by_word_blocks = FastDivmod(words);
  grid.blocks = static_cast<int>(grid.pack_blocks + positions * words * params.lines);
  const bool some = kTakesTurns<kMath> && params.run_flag != nullptr;
  const int blocks = some ? std::min(grid.blocks, kSomeBlocks) : grid.blocks;
  launch_early<prepare_kernel<kMath, kWords>>(site, dim3(static_cast<unsigned>(blocks)),
                                              kPrepareThreads, shared_bytes, params, grid);
}

// Prepares the lines and, if pack is true, the filters. A block takes all words of a position, up
// to 32.
template <TensorMath kMath>
void prepare(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
             bool pack) {
  const int64_t words = int64_t{params.slabs} * params.lane_bytes / 4;
  if (words <= 8) return prepare_words<kMath, 8>(site, shape, params, pack);
  if (words <= 16) return prepare_words<kMath, 16>(site, shape, params, pack);
  prepare_words<kMath, 32>(site, shape, params, pack);
}

}  // namespace convx
