// Writes the source as lines (window_shape.h), in the layout of a stage in shared memory:
//
//   lines [group][chunk][component][line][position][lane_bytes]
//
// Channels are innermost and swizzled, so a segment of a stage is one bulk copy. Rounding to TF32,
// scaling and splitting happen here, once per value.
#pragma once

#include <type_traits>

#include "device/convert.cuh"
#include "device/swizzle.cuh"
#include "engines/cuda/lines/pack_filters.cuh"
#include "engines/cuda/lines/window_place.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// 32-bit words that a block writes per component.
inline constexpr int kTurnedWords = 2048;

// float32, or the bits of either 16-bit type.
template <TensorMath kMath>
using SourceBits =
    std::conditional_t<sizeof(typename TensorTypes<kMath>::Element) == 4, float, uint16_t>;

// One 32-bit word of each component of a position: one TF32 value, or two neighbouring channels.
// Values for scaled fp16 are scaled already.
template <TensorMath kMath>
struct TurnedWord {
  static constexpr int kChannels = 4 / operand_bytes(kMath);
  using Source = SourceBits<kMath>;
  uint32_t part[count_planes(kMath)];

  __device__ __forceinline__ explicit TurnedWord(const Source (&values)[kChannels]) {
    if constexpr (kMath == TensorMath::kTf32) {
      part[0] = round_to_tf32(values[0]);
    } else if constexpr (sizeof(Source) == 4) {
      const OperandPair<kMath> pair(values[0], values[1]);
#pragma unroll
      for (int i = 0; i < count_planes(kMath); ++i) part[i] = pair.part[i];
    } else {
      part[0] = static_cast<uint32_t>(values[0]) | (static_cast<uint32_t>(values[1]) << 16);
    }
  }
};

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
class SourceTurner {
  using Element = typename TensorTypes<kMath>::Element;
  using Source = SourceBits<kMath>;
  using Word = TurnedWord<kMath>;
  static constexpr int kPlanes = count_planes(kMath);
  static constexpr int kWarps = kPrepareThreads / 32;
  static constexpr int kPositions = kTurnedWords / kWords;

 public:
  struct Shared {
    int64_t offset[kPositions];  // source offset of each position
    // The pitch is odd: neighbouring positions of a word never share a bank, neighbouring words of
    // a position seldom do.
    uint32_t words[kPlanes][kPositions][kWords + 1];
  };

  // Called by all threads of the block.
  __device__ __forceinline__ SourceTurner(const WindowParams& p, Shared& shared, int position_block,
                                          int word_block, int line)
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
  __device__ __forceinline__ void turn_planes() {
    constexpr int kHalves = kPositions / 32, kTurns = kWords / kWarps;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    Source values[kTurns][kHalves][Word::kChannels];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const Place place = locate(first_word_ + turn * kWarps + warp);
      const Source* const source = static_cast<const Source*>(p_.source) + place.offset;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int64_t offset = shared_.offset[32 * half + lane];
#pragma unroll
        for (int i = 0; i < Word::kChannels; ++i) {
          const bool some = i < place.left && offset >= 0;
          values[turn][half][i] = some ? source[offset + i * p_.source_c] : Source{};
        }
      }
    }
    if constexpr (is_half(kMath)) {
      const float scale = p_.scales->source;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (float& value : values[turn][half]) value *= scale;
        }
      }
      // The 32 lanes of a warp have 32 pixels of the same channel.
      check_fitness(p_.scales, reinterpret_cast<float (&)[sizeof(values) / 4]>(values), 0xffffffff);
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const Word word(values[turn][half]);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          shared_.words[plane][32 * half + lane][turn * kWarps + warp] = word.part[plane];
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

}  // namespace convx
