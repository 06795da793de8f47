// The builder warps of the row kernel: from a raw input row to the B operands of its taps.
//
// A slot of the ring is [channel set][kernel column s][channel][64 pixels], 16-bit: the input row,
// shifted by the taps' columns, rounded or split. A column of B is 128 bytes, swizzled. A lane
// builds 16 pixels of channel lane / 4, which are two 16-byte units of each tap's column.
#pragma once

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "engines/cuda/weight_grad/rows_memory.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"

namespace convx {

template <typename T, OperandForm kForm>
class RowBuilder {
  static constexpr int kComponents = count_components(kForm);
  static constexpr int kBytes = sizeof(T);

  // Neighbouring pixels in every component, as pairs that begin at even pixels. Each pixel is
  // converted once, for all taps that read it.
  template <int kPairs>
  struct BuiltPairs {
    uint32_t word[kComponents][kPairs];

    __device__ __forceinline__ explicit BuiltPairs(const float (&values)[2 * kPairs]) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float first = values[2 * i], second = values[2 * i + 1];
        if constexpr (kBytes == 2) {
          word[0][i] = __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x5410);
        } else {
          uint32_t pair[kComponents];
          split_pair<kForm>(first, second, pair);
#pragma unroll
          for (int j = 0; j < kComponents; ++j) word[j][i] = pair[j];
        }
      }
    }

    // The pair that begins at this pixel.
    __device__ __forceinline__ uint32_t find(int component, int pixel) const {
      const uint32_t (&words)[kPairs] = word[component];
      if (pixel % 2 == 0) return words[pixel / 2];
      return __byte_perm(words[pixel / 2], words[pixel / 2 + 1], 0x5432);
    }
  };

 public:
  __device__ RowBuilder(const WgradGeometry& g, const WgradCall& call, const RowsMemory& memory,
                        const WgradWork& work, int warp)
      : g_(g), call_(call), memory_(memory), work_(work), warp_(warp), window_(g, work.tile) {
    scale_ = find_operand_scale<kForm, PackedSide::kInput>(call);
  }

  __device__ void run() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    RingCursor stage, slot;
    for (int i = 0; i < work_.stages; ++i) {
      const RowRun run(g_, work_.first_stage + i * work_.stage_step);
      const int count = window_.count_rows(run);
      for (int index = 0; index < count; ++index) {
        wait_barrier(memory_.input_full + 8 * stage.slot, stage.parity);
        wait_barrier(memory_.row_empty + 8 * slot.slot, slot.parity ^ 1);
        build_row(memory_.input + stage.slot * memory_.input_stage_bytes,
                  memory_.ring + slot.slot * memory_.slot_bytes);
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
          arrive(memory_.row_full + 8 * slot.slot);
          arrive(memory_.input_empty + 8 * stage.slot);
        }
        stage.advance(g_.row_tiles.input_stages);
        slot.advance(g_.row_tiles.ring_rows);
      }
    }
  }

 private:
  __device__ __forceinline__ void build_row(uint32_t from, uint32_t to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4;
    const RowTiles& t = g_.row_tiles;
    const int set_channels = t.set_channels(), column_bytes = set_channels * 128;
    for (int first = 8 * warp_; first < t.block_channels; first += 8 * kRowBuilderWarps) {
      const int channel = first + lane / 4;
      const uint32_t raw = from + channel * t.input_pitch;
      // There are two channel sets at most; the second follows on all kernel columns of the first.
      const int before = channel < set_channels ? 0 : (g_.kernel_columns - 1) * set_channels;
      uint32_t column = to + (channel + before) * 128;
      if (t.taps_are_neighbours) {
        for (int s = 0; s < g_.kernel_columns; s += kBuiltTogether) {
          float values[16 + kBuiltTogether];
          load_neighbours(values, raw, quarter * 16 + t.input_shift + s);
          const BuiltPairs<8 + kBuiltTogether / 2> pairs(values);
#pragma unroll
          for (int shift = 0; shift < kBuiltTogether; ++shift) {
            if (s + shift >= g_.kernel_columns) break;
            store(pairs, shift, column, channel & 7);
            column += column_bytes;
          }
        }
      } else {
        for (int s = 0; s < g_.kernel_columns; ++s) {
          float values[16];
          const int first = t.input_shift + s * g_.dilation_w;
          if (g_.stride_w == 1) {
            load_neighbours(values, raw, quarter * 16 + first);
          } else {
            load_strided(values, raw, quarter * 16 * g_.stride_w + first);
          }
          store(BuiltPairs<8>(values), 0, column, channel & 7);
          column += column_bytes;
        }
      }
    }
  }

  // Loads neighbouring pixels, 16-bit values in the lower halves of words. `first` is the same for
  // all lanes up to a multiple of 16 bytes, so branches on it do not diverge.
  template <int kCount>
  __device__ __forceinline__ void load_neighbours(float (&values)[kCount], uint32_t raw,
                                                  int first) const {
    constexpr int kWords = ((kCount + 16 / kBytes - 1) * kBytes + 15) / 16 * 4;
    uint32_t words[kWords];
    const uint32_t start = raw + first * kBytes / 16 * 16;
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      uint32_t unit[4];
      load_16_bytes(start + 4 * i, unit);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[i + j] = unit[j];
    }
    // Registers have no dynamic index: the words are shifted by 2 and by 1.
    const int phase = first * kBytes % 16;
    if ((phase & 8) != 0) shift_words<2>(words);
    if ((phase & 4) != 0) shift_words<1>(words);
    if constexpr (kBytes == 4) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __uint_as_float(words[i]);
    } else {
      const uint32_t even = (phase & 2) != 0 ? 0x4432 : 0x4410,
                     odd = (phase & 2) != 0 ? 0x4454 : 0x4432;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t next = words[i / 2 + 1 < kWords ? i / 2 + 1 : i / 2];
        values[i] = __uint_as_float(__byte_perm(words[i / 2], next, i % 2 == 0 ? even : odd));
      }
    }
    finish(values);
  }

  template <int kDistance, int kWords>
  static __device__ __forceinline__ void shift_words(uint32_t (&words)[kWords]) {
#pragma unroll
    for (int i = 0; i + kDistance < kWords; ++i) words[i] = words[i + kDistance];
  }

  // Loads every stride-th pixel.
  __device__ __forceinline__ void load_strided(float (&values)[16], uint32_t raw, int first) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t at = raw + (first + i * g_.stride_w) * kBytes;
      values[i] = __uint_as_float(kBytes == 4 ? load_word(at) : load_half_word(at));
    }
    finish(values);
  }

  template <int kCount>
  __device__ __forceinline__ void finish(float (&values)[kCount]) const {
    if constexpr (is_scaled(kForm)) {
#pragma unroll
      for (float& value : values) value *= scale_;
      // The four lanes that have pixels of the same channel judge together.
      check_fitness(call_.scales, values, 0xfu << (threadIdx.x % 32 / 4 * 4));
    }
  }

  // Stores 16 pixels from `shift` on.
  template <typename Pairs>
  __device__ __forceinline__ void store(const Pairs& pairs, int shift, uint32_t column,
                                        uint32_t swizzle_bits) const {
    const uint32_t quarter = threadIdx.x % 4;
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const uint32_t to = column + (((2 * quarter + unit) ^ swizzle_bits) << 4);
#pragma unroll
      for (int j = 0; j < kComponents; ++j) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = pairs.find(j, 8 * unit + 2 * i + shift);
        store_16_bytes(to + j * memory_.component_bytes, words);
      }
    }
  }

  const WgradGeometry& g_;
  const WgradCall& call_;
  const RowsMemory& memory_;
  const WgradWork& work_;
  const int warp_;
  const RowWindow window_;
  float scale_;
};

}  // namespace convx
