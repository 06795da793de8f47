// The builder warps of the row kernel: from a raw input row to the B operands of its taps.
//
// A slot of the ring is [kernel column s][channel][64 pixels], 16-bit: the input row, shifted by
// the taps' columns, rounded or split, with zeros outside of the image. A column of B is 128 bytes,
// swizzled. Pixels of a step are permuted, in A and B alike, so that the thread which holds k = 2t
// and 2t + 1 of an MMA's A fragment holds neighbouring pixels of all MMAs of the step:
//   word t of 16-byte unit u of a column = pixels 16t + 2u and the next.
// A lane builds word t = lane % 4 of all units of channel lane / 4: 16 neighbouring pixels.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda_weight_grad/load_item.cuh"
#include "engines/cuda_weight_grad/rows_loader.cuh"

namespace convx {

template <typename T, OperandForm kForm>
class RowBuilder {
  static constexpr int kComponents = count_components(kForm);
  static constexpr int kBytes = sizeof(T);

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
      const RowRun run(g_, static_cast<int>(work_.first_stage) + i);
      const int count = window_.count_rows(run);
      for (int index = 0; index < count; ++index) {
        wait_barrier(memory_.input_full + 8 * stage.slot, stage.parity);
        wait_barrier(memory_.row_empty + 8 * slot.slot, slot.parity ^ 1);
        build_row(run, window_.find_row(g_, run, index), stage.slot, slot.slot);
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
  __device__ __forceinline__ void build_row(const RowRun& run, int row, int stage, int slot) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const RawRows rows =
        find_input_rows<T>(g_, call_, run, row, work_.tile.channel_tile * g_.atom_channels);
    const uint32_t from = memory_.input + stage * memory_.input_stage_bytes;
    const uint32_t to = memory_.ring + slot * memory_.slot_bytes;
    for (int first = 8 * warp_; first < g_.row_tiles.block_channels;
         first += 8 * kRowBuilderWarps) {
      const int channel = first + lane / 4;
      const int phase = find_phase(rows.first + channel * rows.channel_bytes);
      const uint32_t raw = from + channel * g_.row_tiles.input_pitch + phase;
      // Pixels of the piece that lie in the image; none of channels beyond the last.
      const int begin = rows.begin / kBytes;
      const int end = channel < rows.channels ? rows.end / kBytes : 0;
      if (g_.row_tiles.taps_are_neighbours) {
        for (int s = 0; s < g_.kernel_columns; s += kBuiltTogether) {
          float values[16 + kBuiltTogether - 1];
          load(values, raw, begin, end, lane % 4 * 16 + s, 1);
#pragma unroll
          for (int shift = 0; shift < kBuiltTogether; ++shift) {
            if (s + shift < g_.kernel_columns) store(values, shift, to, channel, s + shift);
          }
        }
      } else {
        for (int s = 0; s < g_.kernel_columns; ++s) {
          float values[16];
          load(values, raw, begin, end, lane % 4 * 16 * g_.stride_w + s * g_.dilation_w,
               g_.stride_w);
          store(values, 0, to, channel, s);
        }
      }
    }
  }

  // Loads every step-th pixel from `first` on, scaled, and zeros outside of [begin, end); 16-bit
  // values stay in the lower half of a word. All lanes of a warp must call it.
  template <int kCount>
  __device__ __forceinline__ void load(float (&values)[kCount], uint32_t raw, int begin, int end,
                                       int first, int step) {
    // Every pixel is loaded, also those that are not kept: a branch around each load would make its
    // latency count. Their addresses are in shared memory all the same.
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t at = raw + (first + i * step) * kBytes;
      values[i] = __uint_as_float(kBytes == 4 ? load_word(at) : load_half_word(at));
    }
    const bool has_outside = first < begin || first + (kCount - 1) * step >= end;
    if (__any_sync(0xffffffff, has_outside)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int pixel = first + i * step;
        if (pixel < begin || pixel >= end) values[i] = 0;
      }
    }
    if constexpr (is_scaled(kForm)) {
#pragma unroll
      for (float& value : values) value *= scale_;
      // The four lanes that have pixels of the same channel judge together.
      check_fitness(call_.scales, values, 0xfu << (threadIdx.x % 32 / 4 * 4));
    }
  }

  template <int kCount>
  __device__ __forceinline__ void store(const float (&values)[kCount], int shift, uint32_t slot,
                                        int channel, int s) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t column = slot + (s * g_.row_tiles.block_channels + channel) * 128 + lane % 4 * 4;
#pragma unroll
    for (int unit = 0; unit < 8; ++unit) {
      const float first = values[2 * unit + shift], second = values[2 * unit + 1 + shift];
      const uint32_t to = column + ((unit ^ (channel & 7)) << 4);
      if constexpr (sizeof(T) == 2) {
        store_word(to, __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x5410));
      } else {
        uint32_t words[kComponents];
        split_pair<kForm>(first, second, words);
#pragma unroll
        for (int i = 0; i < kComponents; ++i) {
          store_word(to + i * memory_.component_bytes, words[i]);
        }
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
