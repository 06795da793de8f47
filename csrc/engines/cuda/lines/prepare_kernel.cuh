// The kernel that runs before lines_kernel. It packs the filters into the layout that wgmma reads
// from shared memory, and writes the source as lines (window_shape.h) in the layout of a stage:
//
//   packed [filter tile][chunk][tap][64-filter half of the tile][component][64][lane_bytes]
//   lines  [group][chunk][component][line][position][lane_bytes]
//
// Both are swizzled as in shared memory, so a whole filter stage, or a segment of a source stage,
// is one bulk copy. Rounding to TF32, scaling and splitting happen here, once per value.
//
// Blocks of 256 threads. The first pack_blocks blocks each pack a chunk of a few filters; the
// others each write kTransposedWords words per component of a line:
//
//   NCHW            32 lanes read 32 neighbouring pixels -> shared memory -> 16-byte stores
//   channels_last   each thread converts 16 bytes of a position in registers
//
// Shared memory: [component][positions][kWords + 1] words and the positions' source offsets, or up
// to 32 KiB of float32 filters (more if a single filter needs it).
#pragma once

#include "core/arithmetic.h"
#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/lines/window_place.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/stage_filters.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

inline constexpr int kPrepareThreads = 256;  // per block of prepare_kernel

// Called by a block, for a chunk of the channels of a few filters, and all taps. Neighbouring
// threads write neighbouring bytes.
template <TensorMath kMath>
__device__ __forceinline__ void pack_filters(const WindowParams& p, const FilterStage& stage,
                                             int row_block, int chunk_index, float* staged) {
  using T = typename TensorTypes<kMath>::Element;
  constexpr int kPlanes = count_planes(kMath);
  constexpr int kValues = OperandWords<kMath>::kValues;
  const int rows = stage.rows;
  const int first_row = row_block * rows;          // counted over all filter tiles, 64 per half
  const int half = first_row / kWindowFilters;     // counted over all tiles
  const int filter_tile = half / p.filter_groups;  // counted over all groups
  const int group = filter_tile / p.filter_tiles;
  const int tile_filters = kWindowFilters * p.filter_groups;
  const int first_filter =
      (filter_tile - group * p.filter_tiles) * tile_filters + first_row % tile_filters;
  const int first_channel = chunk_index * p.chunk_channels;
  const T* const filters = static_cast<const T*>(p.filters) + group * p.filter_group +
                           first_filter * p.filter_target + first_channel * p.filter_source;
  stage_filters(stage, filters, p.group_targets - first_filter, p.group_sources - first_channel,
                staged);
  __syncthreads();

  const int plane_bytes = kWindowFilters * p.lane_bytes;
  const int tap_bytes = p.filter_groups * kPlanes * plane_bytes;
  char* chunk = static_cast<char*>(const_cast<void*>(p.packed)) +
                (static_cast<int64_t>(filter_tile) * p.chunks + chunk_index) * p.taps * tap_bytes +
                (half - filter_tile * p.filter_groups) * kPlanes * plane_bytes;
  const int units = p.lane_bytes / 16;  // a power of 2, and so is rows
  const int unit_shift = __popc(units - 1), row_shift = __popc(rows - 1);
  for (int i = threadIdx.x; i < p.taps * rows * units; i += kPrepareThreads) {
    const int unit = i & (units - 1);
    const int row = (i >> unit_shift) & (rows - 1);
    const int tap = i >> (unit_shift + row_shift);
    const float* const from = staged + stage.place(row, unit * kValues, tap);
    float values[kValues];
#pragma unroll
    for (int c = 0; c < kValues; ++c) values[c] = from[c * stage.channel_step];
    if constexpr (is_half(kMath)) {
      const int filter = min(first_filter + row, p.group_targets - 1);
      scale_filter(p.scales, group * p.group_targets + filter, values);
    }
    const OperandWords<kMath> words(values);
    char* const to =
        chunk + tap * tap_bytes +
        swizzle((first_row % kWindowFilters + row) * p.lane_bytes + unit * 16, p.lane_bytes);
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
      *reinterpret_cast<uint4*>(to + plane * plane_bytes) = words.part[plane];
    }
  }
}

// 32-bit words that a block writes per component.
inline constexpr int kTransposedWords = 2048;

// The source offset of a position of a line, in elements from image 0, or -1 if it is padding.
__device__ __forceinline__ int64_t find_source(const WindowParams& p, int position, int row_phase,
                                               int column_phase) {
  const LinePoint point = locate_position(p, position);
  const int row = (point.row + p.row_base) * p.source_step_h + row_phase;
  const int column =
      (point.strip * p.strip_columns + point.column + p.column_base) * p.source_step_w +
      column_phase;
  const bool inside = point.image < p.images &&
                      static_cast<unsigned>(row) < static_cast<unsigned>(p.source_height) &&
                      static_cast<unsigned>(column) < static_cast<unsigned>(p.source_width);
  return inside ? point.image * p.source_n + row * p.source_h + column * p.source_w : -1;
}

// Writes kWords words per component of a block's positions, from one or more chunks.
template <TensorMath kMath, int kWords>
class SourceTransposer {
  using Element = typename TensorTypes<kMath>::Element;
  using Source = SourceBits<kMath>;
  using Word = OperandWord<kMath>;
  static constexpr int kPlanes = count_planes(kMath);
  static constexpr int kWarps = kPrepareThreads / 32;
  static constexpr int kPositions = kTransposedWords / kWords;

 public:
  struct Shared {
    int64_t offset[kPositions];  // source offset of each position
    // The pitch is odd: neighbouring positions of a word never share a bank, neighbouring words of
    // a position seldom do.
    uint32_t words[kPlanes][kPositions][kWords + 1];
  };

  // Called by all threads of the block.
  __device__ __forceinline__ SourceTransposer(const WindowParams& p, Shared& shared,
                                              int position_block, int word_block, int line)
      : p_(p),
        shared_(shared),
        first_(position_block * kPositions),
        first_word_(word_block * kWords),
        line_(line),
        chunk_shift_(p.lane_bytes == 128  ? 5
                     : p.lane_bytes == 64 ? 4
                                          : 3) {
    int segment = 0;  // the first segment of this line
    while (p.segment[segment].line != line) ++segment;
    if (threadIdx.x < kPositions) {
      shared.offset[threadIdx.x] = find_source(
          p, first_ + threadIdx.x, p.segment[segment].row_phase, p.segment[segment].column_phase);
    }
    __syncthreads();
  }

  // NCHW: neighbouring threads read neighbouring pixels. The values are transposed in shared
  // memory, so that neighbouring threads write neighbouring channels.
  __device__ __forceinline__ void transpose_planes() {
    constexpr int kHalves = kPositions / 32, kRounds = kWords / kWarps;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    Source values[kRounds][kHalves][Word::kChannels];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Place place = locate(first_word_ + round * kWarps + warp);
      const Source* const source = static_cast<const Source*>(p_.source) + place.offset;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int64_t offset = shared_.offset[32 * half + lane];
#pragma unroll
        for (int i = 0; i < Word::kChannels; ++i) {
          const bool some = i < place.left && offset >= 0;
          values[round][half][i] = some ? source[offset + i * p_.source_c] : Source{};
        }
      }
    }
    if constexpr (is_half(kMath)) {
      const float scale = p_.scales->source;
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (float& value : values[round][half]) value *= scale;
        }
      }
      // The 32 lanes of a warp have 32 pixels of the same channel.
      check_fitness(p_.scales, reinterpret_cast<float (&)[sizeof(values) / 4]>(values), 0xffffffff);
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const Word word(values[round][half]);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          shared_.words[plane][32 * half + lane][round * kWarps + warp] = word.part[plane];
        }
      }
    }
    __syncthreads();
    // Goes through the 16-byte units of a chunk and position first, then through the positions.
    const int unit_shift = chunk_shift_ - 2;
#pragma unroll
    for (int i = threadIdx.x; i < kPositions * kWords / 4; i += kPrepareThreads) {
      const int position = (i >> unit_shift) & (kPositions - 1);
      const int chunk = i / kPositions >> unit_shift;
      const int word = (chunk << chunk_shift_) + 4 * (i & ((1 << unit_shift) - 1));
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        const uint32_t* const from = &shared_.words[plane][position][word];
        store(position, word, plane, make_uint4(from[0], from[1], from[2], from[3]));
      }
    }
  }

  // channels_last: each thread converts 16 bytes of a position.
  __device__ __forceinline__ void copy_channels() {
    constexpr int kValues = OperandWords<kMath>::kValues;
#pragma unroll
    for (int i = threadIdx.x; i < kPositions * kWords / 4; i += kPrepareThreads) {
      const int word = i % (kWords / 4) * 4, position = i / (kWords / 4);
      const Place place = locate(first_word_ + word);
      const int64_t offset = shared_.offset[position];
      const auto* const source = static_cast<const Element*>(p_.source) + place.offset + offset;
      union {
        uint4 units[kValues * sizeof(Element) / 16];
        Element elements[kValues];
      } from{};
      if (offset >= 0 && p_.wide_channels && place.left >= kValues) {
#pragma unroll
        for (int unit = 0; unit < static_cast<int>(sizeof(from) / 16); ++unit) {
          from.units[unit] = __ldg(reinterpret_cast<const uint4*>(source) + unit);
        }
      } else if (offset >= 0) {
#pragma unroll
        for (int c = 0; c < kValues; ++c) {
          if (c < place.left) from.elements[c] = source[c];
        }
      }
      float values[kValues];
#pragma unroll
      for (int c = 0; c < kValues; ++c) values[c] = to_accumulate(from.elements[c]);
      if constexpr (is_half(kMath)) {
        const float scale = p_.scales->source;
#pragma unroll
        for (float& value : values) value *= scale;
        // Lanes with the same channels have different pixels.
        constexpr uint32_t kSameChannels = kWords == 32   ? 0x01010101
                                           : kWords == 16 ? 0x11111111
                                                          : 0x55555555;
        check_fitness(p_.scales, values, kSameChannels << threadIdx.x % (kWords / 4));
      }
      const OperandWords<kMath> words(values);
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) store(position, word, plane, words.part[plane]);
    }
  }

 private:
  struct Place {
    int64_t offset;  // in elements, of the word's first channel
    int left;        // channels of the group from this one on; may be negative
  };

  // word: counted over all groups and chunks.
  __device__ __forceinline__ Place locate(int word) const {
    const int slab = word >> chunk_shift_;  // chunk, counted over all groups
    const int group = slab < p_.chunks ? 0 : slab / p_.chunks;
    const int channel = (slab - group * p_.chunks) * p_.chunk_channels +
                        (word & ((1 << chunk_shift_) - 1)) * Word::kChannels;
    const bool beyond = slab >= p_.slabs;
    return {beyond ? 0 : (static_cast<int64_t>(group) * p_.group_sources + channel) * p_.source_c,
            beyond ? 0 : p_.channels - channel};
  }

  // word: counted from the block's first.
  __device__ __forceinline__ void store(int position, int word, int plane, uint4 words) const {
    const int slab = (first_word_ + word) >> chunk_shift_;
    const int line_position = first_ + position;
    if (line_position >= p_.line_positions || slab >= p_.slabs) return;
    // The row within the 8 positions that the swizzle permutes.
    const int row = line_position & (kLineAlignment - 1);
    const int within = (word & ((1 << chunk_shift_) - 1)) * 4;
    const int64_t line = (static_cast<int64_t>(slab) * kPlanes + plane) * p_.lines + line_;
    char* const to = static_cast<char*>(p_.lines_memory) +
                     (line * p_.line_positions + line_position - row) * p_.lane_bytes;
    *reinterpret_cast<uint4*>(to + swizzle(row * p_.lane_bytes + within, p_.lane_bytes)) = words;
  }

  const WindowParams& p_;
  Shared& shared_;
  const int first_;       // the block's first position
  const int first_word_;  // the block's first word, over all groups and chunks
  const int line_;
  const int chunk_shift_;  // log2 of a chunk's words
};

// How blocks are numbered: first those that pack filters, [chunk][row block], none if the filters
// are packed already; then those that write lines, [line][word block][position block].
struct PrepareGrid {
  FilterStage filters;  // that a block packs
  FastDivmod by_row_blocks;
  int pack_blocks;
  int blocks;
  FastDivmod by_position_blocks, by_word_blocks;
};

// True if the grid may have fewer blocks than there is work for, each of which loops. Exact kernels
// behind scaled fp16 do this: they mostly return early because of their flag, and launching all
// blocks would take long. The loop makes preparing 4% slower.
template <TensorMath kMath>
inline constexpr bool kLoops = kMath == TensorMath::kTf32 || kMath == TensorMath::kIeee;

template <TensorMath kMath, int kWords>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ WindowParams p,
                   const __grid_constant__ PrepareGrid grid) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // like the kernels that read the results
  wait_for_kernels_before();
  let_next_kernel_start();
  if (__syncthreads_or(must_return(p))) return;  // other blocks may be about to set the flag
  using Transposer = SourceTransposer<kMath, kWords>;
  extern __shared__ __align__(16) char memory[];
  const auto prepare_block = [&](int block) {
    if (block < grid.pack_blocks) {
      const int row_block = grid.by_row_blocks.split(block);  // leaves the chunk in block
      pack_filters<kMath>(p, grid.filters, row_block, block, reinterpret_cast<float*>(memory));
      return;
    }
    block -= grid.pack_blocks;
    const int position_block = grid.by_position_blocks.split(block);
    const int word_block = grid.by_word_blocks.split(block);  // leaves the line in block
    Transposer transposer(p, *reinterpret_cast<typename Transposer::Shared*>(memory),
                          position_block, word_block, block);
    if (p.source_c == 1) {
      transposer.copy_channels();
    } else {
      transposer.transpose_planes();
    }
  };
  if constexpr (!kLoops<kMath>) {
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
  constexpr int64_t kTransposeBytes = sizeof(typename SourceTransposer<kMath, kWords>::Shared);
  constexpr int64_t kPackBytes = 32 << 10;
  constexpr int64_t kEnoughBlocks = 256;  // so that all SMs have some
  constexpr int kSomeBlocks = 1024;
  PrepareGrid grid{};
  int64_t shared_bytes = kTransposeBytes;
  if (pack) {
    const int64_t filters =
        int64_t{kWindowFilters} * shape.filter_groups * shape.filter_tiles * site.problem->groups;
    int rows = 8;
    grid.filters = make_filter_stage(params, rows, params.chunk_channels);
    while (rows > 1 && (grid.filters.shared_bytes() > kPackBytes ||
                        filters / rows * params.chunks < kEnoughBlocks)) {
      rows /= 2;
      grid.filters = make_filter_stage(params, rows, params.chunk_channels);
    }
    grid.by_row_blocks = FastDivmod(filters / rows);
    grid.pack_blocks = static_cast<int>(filters / rows * params.chunks);
    shared_bytes = std::max(shared_bytes, grid.filters.shared_bytes());
  }
  // 0 for streaming blocks and for tiles that TMA reads: they have no lines.
  const int64_t positions = ceil_div(params.line_positions, kTransposedWords / kWords);
  const int64_t words = ceil_div(int64_t{params.slabs} * params.lane_bytes / 4, kWords);
  grid.by_position_blocks = FastDivmod(std::max<int64_t>(1, positions));
  grid.by_word_blocks = FastDivmod(words);
  grid.blocks = static_cast<int>(grid.pack_blocks + positions * words * params.lines);
  const bool some = kLoops<kMath> && params.run_flag != nullptr;
  const int blocks = some ? std::min(grid.blocks, kSomeBlocks) : grid.blocks;
  launch_early<prepare_kernel<kMath, kWords>>(site, blocks, kPrepareThreads, shared_bytes, params,
                                              grid);
}

// Prepares the lines and, if pack is true, the filters. A block takes all words of a position, up
// to 32.
template <TensorMath kMath>
void prepare(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
             bool pack) {
  constexpr TensorMath kPacking = packing_math(kMath);
  const int64_t words = int64_t{params.slabs} * params.lane_bytes / 4;
  if (words <= 8) return prepare_words<kPacking, 8>(site, shape, params, pack);
  if (words <= 16) return prepare_words<kPacking, 16>(site, shape, params, pack);
  prepare_words<kPacking, 32>(site, shape, params, pack);
}

}  // namespace convx
