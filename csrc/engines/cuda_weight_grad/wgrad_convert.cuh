// The producers of the weight gradient for float32 tensors in channels_last, which need no packed
// copy in memory: one lane lets TMA bring pixels, and four warps convert them.
//
//   X, dY --TMA (im2col)--> staging ring --converter warps--> X', dY' in 16-bit components
//                           [64 positions][channels] float32   [64 positions][channels], swizzled
//
// A slot of the staging ring holds one tile of a stage: 64 positions of an atom's channels of X',
// or of 64 filters of dY'. A stage of the MMAs is the tiles of X' that it brings along, the halo
// included in the first stage, and then those of dY'.
//
// A converter thread takes 4 channels of a position: 16 bytes of the slot, 8 bytes of each
// component. The tile has the same order before and after, so that the addresses of a thread differ
// by constants only.
//
// Limit: memory, for 1x1 layers; otherwise the converter warps. A value takes 5 to 7 instructions
// of a converter thread, by count.
#pragma once

#include "device/box_copy.cuh"
#include "device/mbarrier.cuh"
#include "device/swizzle.cuh"
#include "engines/cuda_weight_grad/load_item.cuh"
#include "engines/cuda_weight_grad/wgrad_producer.cuh"

namespace convx {

// Where the staging ring is in shared memory: behind X', with its barriers behind the others.
struct StagingMemory {
  uint32_t full, empty;  // barriers, one per slot
  uint32_t slots;

  __device__ StagingMemory(const WgradGeometry& g, const WgradMemory& memory, int components)
      : full(memory.full + kStagingBarrierOffset),
        empty(full + 8 * kMaxStagingSlots),
        slots(memory.input + components * g.block_channel_tiles * memory.ring_bytes) {}

  __device__ void init_barriers(const WgradGeometry& g) const {
    for (int i = 0; i < g.staging_slots; ++i) {
      init_barrier(full + 8 * i, 1);                 // the loading lane
      init_barrier(empty + 8 * i, kConverterWarps);  // a lane of each
    }
    fence_barrier_init();
  }
};

// Copies tiles into the staging ring, as far ahead as there is room. One lane runs it.
class StagingLoader {
 public:
  __device__ StagingLoader(const WgradGeometry& g, const WgradCall& call, const WgradMaps& maps,
                           const StagingMemory& staging, const WgradWork& work)
      : StagingLoader(g, maps, staging, work, g.groups[work.tile.first_group],
                      static_cast<int>((call.first_stage + work.first_stage) * kStagePositions)) {}

  __device__ void run() {
    for (int i = 0; i < work_.stages; ++i) {
#pragma unroll 1
      for (int inputs = i == 0 ? g_.halo_stages + 1 : 1; inputs > 0; --inputs) load_input();
      load_gradient();
    }
  }

 private:
  __device__ StagingLoader(const WgradGeometry& g, const WgradMaps& maps,
                           const StagingMemory& staging, const WgradWork& work,
                           const TapGroup& group, int position)
      : g_(g),
        maps_(maps),
        staging_(staging),
        work_(work),
        residue_(g.residues[group.residue]),
        input_(g, position + group.shift / 8 * 8),
        gradient_(g, position) {}

  __device__ __forceinline__ void load_input() {
    const int column = input_.column * g_.stride_w - g_.packed_left;
    const int row = input_.row * g_.stride_h - g_.pad_top;
    const int channel = work_.tile.channel_tile * g_.atom_channels;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_channel_tiles; ++tile) {
      const uint32_t barrier = take_slot(kStagePositions * g_.atom_channels * 4);
      pixel_copy(slot(), &maps_.input, channel + tile * g_.atom_channels, column, row, input_.image,
                 residue_.column, residue_.row, barrier);
      cursor_.advance(g_.staging_slots);
    }
    input_.advance(g_);
  }

  __device__ __forceinline__ void load_gradient() {
    const int filter = work_.tile.filter_tile * kTileFilters;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_filter_tiles; ++tile) {
      const uint32_t barrier = take_slot(kStagePositions * kTileFilters * 4);
      pixel_copy(slot(), &maps_.gradient, filter + tile * kTileFilters, gradient_.column,
                 gradient_.row, gradient_.image, 0, 0, barrier);
      cursor_.advance(g_.staging_slots);
    }
    gradient_.advance(g_);
  }

  // Waits for the next slot, and returns the barrier on which its copy of so many bytes completes.
  __device__ __forceinline__ uint32_t take_slot(uint32_t bytes) const {
    wait_barrier(staging_.empty + 8 * cursor_.slot, cursor_.parity ^ 1);
    arrive_expecting(staging_.full + 8 * cursor_.slot, bytes);
    return staging_.full + 8 * cursor_.slot;
  }
  __device__ __forceinline__ uint32_t slot() const {
    return staging_.slots + cursor_.slot * kStagingSlotBytes;
  }

  const WgradGeometry& g_;
  const WgradMaps& maps_;
  const StagingMemory& staging_;
  const WgradWork& work_;
  const StrideResidue residue_;
  PositionCursor input_, gradient_;
  RingCursor cursor_;
};

// Converts staged tiles into components. All threads of the converter warps run it. Sets unfit of a
// scaled form's scales if a value does not fit, as the packing kernel does.
template <OperandForm kForm>
class OperandConverter {
  static constexpr int kComponents = count_components(kForm);

 public:
  // thread: of the converter warps.
  __device__ OperandConverter(const WgradGeometry& g, const WgradCall& call,
                              const WgradMemory& memory, const StagingMemory& staging,
                              const WgradWork& work, int thread)
      : g_(g),
        memory_(memory),
        staging_(staging),
        stages_(work.stages),
        thread_(thread),
        scales_(call.scales),
        input_scale_(find_operand_scale<kForm, PackedSide::kInput>(call)),
        gradient_scale_(find_operand_scale<kForm, PackedSide::kGradient>(call)) {}

  __device__ void run() {
    fill_stages(g_, memory_, stages_, [&](int i, int slot) {
#pragma unroll 1
      for (int inputs = i == 0 ? g_.halo_stages + 1 : 1; inputs > 0; --inputs) convert_input();
      convert_gradient(slot);
      fence_async_proxy();
      __syncwarp();
      if (thread_ % 32 == 0) arrive(memory_.full + 8 * slot);
    });
  }

 private:
  // The next stage of X', and again where it is mirrored.
  __device__ __forceinline__ void convert_input() {
    const uint32_t bytes = memory_.input_stage_bytes;
    const uint32_t component = g_.block_channel_tiles * memory_.ring_bytes;
    const uint32_t mirror = ring_slot_ < g_.mirrored_stages ? g_.ring_stages * bytes : 0;
    uint32_t to = memory_.input + ring_slot_ * bytes;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_channel_tiles; ++tile, to += memory_.ring_bytes) {
      convert_tile(to, component, g_.row_bytes, mirror, input_scale_);
    }
    if (++ring_slot_ == g_.ring_stages) ring_slot_ = 0;
  }

  __device__ __forceinline__ void convert_gradient(int slot) {
    constexpr uint32_t kTileBytes = kStagePositions * kGradientRowBytes;
    uint32_t to = memory_.gradient + slot * memory_.gradient_stage_bytes;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_filter_tiles; ++tile, to += kTileBytes) {
      convert_tile(to, g_.block_filter_tiles * kTileBytes, kGradientRowBytes, 0, gradient_scale_);
    }
  }

  // Converts the next slot into a tile with rows of row_bytes. component_bytes: from one component
  // of the tile to the next. mirror: the distance to the tile's copy, 0 if it has none.
  __device__ __forceinline__ void convert_tile(uint32_t to, uint32_t component_bytes, int row_bytes,
                                               uint32_t mirror, float scale) {
    constexpr int kUnits = 2;  // of a thread, loaded at once; every tile has a multiple
    // Lanes that hold the same channels judge together whether those are too small.
    const uint32_t every = row_bytes == 128  ? 0x00010001u
                           : row_bytes == 64 ? 0x01010101u
                                             : 0x11111111u;
    const uint32_t peers = every << (thread_ & (row_bytes / 8 - 1));
    wait_barrier(staging_.full + 8 * cursor_.slot, cursor_.parity);
    uint32_t from = staging_.slots + cursor_.slot * kStagingSlotBytes + 16 * thread_;
    to += swizzle(8 * thread_, row_bytes);
    uint32_t next[kUnits][4];
    const auto load = [&] {
#pragma unroll
      for (int i = 0; i < kUnits; ++i, from += 16 * kConverterThreads) load_16_bytes(from, next[i]);
    };
    load();
    // The swizzle repeats every 1024 bytes, which all threads fill at once.
    const int units = row_bytes / 16;
#pragma unroll 1
    for (int unit = 0; unit < units; unit += kUnits, to += kUnits * 8 * kConverterThreads) {
      float values[4 * kUnits];
#pragma unroll
      for (int i = 0; i < 4 * kUnits; ++i) {
        values[i] = __uint_as_float(next[i / 4][i % 4]);
        if constexpr (is_scaled(kForm)) values[i] *= scale;
      }
      if (unit + kUnits < units) load();
      if constexpr (is_scaled(kForm)) check_fitness<kUnits>(scales_, values, peers);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        uint32_t first[kComponents], second[kComponents];
        split_pair<kForm>(values[4 * i], values[4 * i + 1], first);
        split_pair<kForm>(values[4 * i + 2], values[4 * i + 3], second);
        const uint32_t at = to + i * 8 * kConverterThreads;
#pragma unroll
        for (int j = 0; j < kComponents; ++j) {
          store_8_bytes(at + j * component_bytes, first[j], second[j]);
          if (mirror != 0) store_8_bytes(at + mirror + j * component_bytes, first[j], second[j]);
        }
      }
    }
    __syncwarp();
    if (thread_ % 32 == 0) arrive(staging_.empty + 8 * cursor_.slot);
    cursor_.advance(g_.staging_slots);
  }

  const WgradGeometry& g_;
  const WgradMemory& memory_;
  const StagingMemory& staging_;
  const int stages_, thread_;
  HalfScales* const scales_;
  const float input_scale_, gradient_scale_;
  RingCursor cursor_;
  int ring_slot_ = 0;  // that the next stage of X' goes to
};

}  // namespace convx
