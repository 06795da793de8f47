// The producers of the weight gradient for float32 tensors in channels_last, which need no packed
// copy in memory: one lane lets TMA bring pixels, and seven warps convert them.
//
//   X, dY --TMA (im2col)--> staging ring --converter warps--> X', dY' in 16-bit components
//                           [64 positions][channels] float32   [64 positions][channels], swizzled
//
// A slot of the staging ring holds one tile of a stage: 64 positions of an atom's channels of X',
// or of 64 filters of dY'. A stage of the MMAs is the tiles of X' that it brings along, the halo
// included in the first stage, and then those of dY'.
//
// A tile is 8 groups of 8 positions. The seven converter warps have one group each, and one of them
// the eighth: another one for every place in the ring of tiles. A lane takes 4 channels of a
// position: 16 bytes of the slot, 8 bytes of each component. The tile has the same order before and
// after, so that the addresses of a lane differ by constants only. With the loading warp the
// converters are two warpgroups: one more warp would take registers from all others, because they
// are allocated for four warps at a time.
//
// A block of a scaled form that finds a value which does not fit sets a flag, and the exact form
// computes dW afterwards. From then on, blocks load and convert nothing more.
//
// Limit: memory, for 1x1 layers; otherwise the converter warps. A value takes 5 instructions of a
// lane, by count.
#pragma once

#include "device/async_copy.cuh"
#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "engines/cuda/weight_grad/wgrad_producer.cuh"

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

// Whether what the block accumulates will be discarded, because some block has found a value that
// does not fit a scaled form. The flag is read a stage ahead, so that nobody waits for memory.
class DiscardFlag {
 public:
  __device__ explicit DiscardFlag(const WgradCall& call)
      : flag_(call.run_if_zero ? call.run_flag : nullptr) {}

  // Call once per stage.
  __device__ __forceinline__ void advance() {
    holds_ = next_ != 0;
    if (flag_ != nullptr) next_ = *flag_;
  }
  __device__ __forceinline__ bool holds() const { return holds_; }

 private:
  const volatile int* const flag_;
  int next_ = 0;
  bool holds_ = false;
};

// Copies tiles into the staging ring, as far ahead as there is room. One lane runs it.
class StagingLoader {
 public:
  __device__ StagingLoader(const WgradGeometry& g, const WgradCall& call, const WgradMaps& maps,
                           const StagingMemory& staging, const WgradWork& work)
      : StagingLoader(g, call, maps, staging, work, g.groups[work.tile.first_group],
                      static_cast<int>((call.first_stage + work.first_stage) * kStagePositions)) {}

  __device__ void run() {
    for (int i = 0; i < work_.stages; ++i) {
      discard_.advance();
#pragma unroll 1
      for (int inputs = i == 0 ? g_.halo_stages + 1 : 1; inputs > 0; --inputs) load_input();
      load_gradient();
    }
  }

 private:
  __device__ StagingLoader(const WgradGeometry& g, const WgradCall& call, const WgradMaps& maps,
                           const StagingMemory& staging, const WgradWork& work,
                           const TapGroup& group, int position)
      : g_(g),
        maps_(maps),
        staging_(staging),
        work_(work),
        residue_(g.residues[group.residue]),
        input_(g, position + group.shift / 8 * 8),
        gradient_(g, position),
        step_(call.step),
        discard_(call) {}

  __device__ __forceinline__ void load_input() {
    const int column = input_.column * g_.stride_w - g_.packed_left;
    const int row = input_.row * g_.stride_h - g_.pad_top;
    const int channel = work_.tile.channel_tile * g_.atom_channels;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_channel_tiles; ++tile) {
      fill_slot(kStagePositions * g_.atom_channels * 4, [&](uint32_t slot, uint32_t barrier) {
        pixel_copy(slot, &maps_.input, channel + tile * g_.atom_channels, column, row, input_.image,
                   residue_.column, residue_.row, barrier);
      });
    }
    input_.advance(g_, step_);
  }

  __device__ __forceinline__ void load_gradient() {
    const int filter = work_.tile.filter_tile * kTileFilters;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_filter_tiles; ++tile) {
      fill_slot(kStagePositions * kTileFilters * 4, [&](uint32_t slot, uint32_t barrier) {
        pixel_copy(slot, &maps_.gradient, filter + tile * kTileFilters, gradient_.column,
                   gradient_.row, gradient_.image, 0, 0, barrier);
      });
    }
    gradient_.advance(g_, step_);
  }

  // Waits for the next slot, and calls copy(slot, barrier), which brings so many bytes.
  template <typename Copy>
  __device__ __forceinline__ void fill_slot(uint32_t bytes, const Copy& copy) {
    wait_barrier(staging_.empty + 8 * cursor_.slot, cursor_.parity ^ 1);
    const uint32_t barrier = staging_.full + 8 * cursor_.slot;
    if (discard_.holds()) {
      arrive(barrier);
    } else {
      arrive_expecting(barrier, bytes);
      copy(staging_.slots + cursor_.slot * kStagingSlotBytes, barrier);
    }
    cursor_.advance(g_.staging_slots);
  }

  const WgradGeometry& g_;
  const WgradMaps& maps_;
  const StagingMemory& staging_;
  const WgradWork& work_;
  const StrideResidue residue_;
  PositionCursor input_, gradient_;
  const StageStep& step_;
  DiscardFlag discard_;
  RingCursor cursor_;
};

// Converts staged tiles into components. All threads of the converter warps run it. Sets unfit of a
// scaled form's scales if a value does not fit, as the packing kernel does.
template <OperandForm kForm>
class OperandConverter {
  static constexpr int kComponents = count_components(kForm);

 public:
  // warp: of the converter warps.
  __device__ OperandConverter(const WgradGeometry& g, const WgradCall& call,
                              const WgradMemory& memory, const StagingMemory& staging,
                              const WgradWork& work, int warp)
      : g_(g),
        memory_(memory),
        staging_(staging),
        stages_(work.stages),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(warp),
        scales_(call.scales),
        input_scale_(find_operand_scale<kForm, PackedSide::kInput>(call)),
        gradient_scale_(find_operand_scale<kForm, PackedSide::kGradient>(call)),
        discard_(call) {}

  __device__ void run() {
    fill_stages(g_, memory_, stages_, [&](int i, int slot) {
      if constexpr (is_scaled(kForm)) discard_.advance();
#pragma unroll 1
      for (int inputs = i == 0 ? g_.halo_stages + 1 : 1; inputs > 0; --inputs) convert_input();
      convert_gradient(slot);
      fence_async_proxy();
      __syncwarp();
      if (lane_ == 0) arrive(memory_.full + 8 * slot);
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
      convert_tile(to, component, g_.row_bytes, mirror, input_scale_,
                   ring_slot_ * g_.block_channel_tiles + tile);
    }
    if (++ring_slot_ == g_.ring_stages) ring_slot_ = 0;
  }

  __device__ __forceinline__ void convert_gradient(int slot) {
    constexpr uint32_t kTileBytes = kStagePositions * kGradientRowBytes;
    uint32_t to = memory_.gradient + slot * memory_.gradient_stage_bytes;
#pragma unroll 1
    for (int tile = 0; tile < g_.block_filter_tiles; ++tile, to += kTileBytes) {
      convert_tile(to, g_.block_filter_tiles * kTileBytes, kGradientRowBytes, 0, gradient_scale_,
                   slot * g_.block_filter_tiles + tile);
    }
  }

  // Converts this warp's groups of the next slot into a tile with rows of row_bytes.
  // component_bytes: from one component of the tile to the next. mirror: the distance to the tile's
  // copy, 0 if it has none. place: the tile's number in its ring.
  __device__ __forceinline__ void convert_tile(uint32_t to, uint32_t component_bytes, int row_bytes,
                                               uint32_t mirror, float scale, int place) {
    wait_barrier(staging_.full + 8 * cursor_.slot, cursor_.parity);
    if (!is_scaled(kForm) || !discard_.holds()) {
      if (row_bytes == 128) {
        convert_groups<128>(to, component_bytes, mirror, scale, place);
      } else if (row_bytes == 64) {
        convert_groups<64>(to, component_bytes, mirror, scale, place);
      } else {
        convert_groups<32>(to, component_bytes, mirror, scale, place);
      }
    }
    __syncwarp();
    if (lane_ == 0) arrive(staging_.empty + 8 * cursor_.slot);
    cursor_.advance(g_.staging_slots);
  }

  template <int kRowBytes>
  __device__ __forceinline__ void convert_groups(uint32_t to, uint32_t component_bytes,
                                                 uint32_t mirror, float scale, int place) {
    constexpr int kGroups = 8;
    constexpr int kGroupBytes = kStagePositions / kGroups * kRowBytes;
    constexpr int kUnits = kGroupBytes / 256;  // of 4 channels, for each lane
    const uint32_t from = staging_.slots + cursor_.slot * kStagingSlotBytes + 16 * lane_;
    to += swizzle(8 * lane_, kRowBytes);
    // A warp has one group of most tiles, and two of every seventh: which ones, depends on the
    // tile's place in its ring, so that every address is written by one thread alone.
    const int first_group =
        static_cast<int>(static_cast<unsigned>(warp_ + place) % kConverterWarps);
#pragma unroll 1
    for (int group = first_group; group < kGroups; group += kConverterWarps) {
      float values[4 * kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        uint32_t words[4];
        load_16_bytes(from + group * 2 * kGroupBytes + i * 512, words);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[4 * i + j] = __uint_as_float(words[j]);
      }
      if constexpr (is_scaled(kForm)) {
#pragma unroll
        for (float& value : values) value *= scale;
        // Lanes that hold the same channels judge together whether those are too small.
        constexpr uint32_t kEvery = kRowBytes == 128  ? 0x00010001u
                                    : kRowBytes == 64 ? 0x01010101u
                                                      : 0x11111111u;
        check_fitness<kUnits>(scales_, values, kEvery << (lane_ & (kRowBytes / 8 - 1)));
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        // swizzle(8 * lane + 256 * i): the address has no other bits of 256 and 512.
        const uint32_t at = (to + group * kGroupBytes) ^ (i * (256 + 2 * 16));
        uint32_t first[kComponents], second[kComponents];
        split_pair<kForm>(values[4 * i], values[4 * i + 1], first);
        split_pair<kForm>(values[4 * i + 2], values[4 * i + 3], second);
#pragma unroll
        for (int j = 0; j < kComponents; ++j) {
          store_8_bytes(at + j * component_bytes, first[j], second[j]);
          if (mirror != 0) store_8_bytes(at + mirror + j * component_bytes, first[j], second[j]);
        }
      }
    }
  }

  const WgradGeometry& g_;
  const WgradMemory& memory_;
  const StagingMemory& staging_;
  const int stages_, lane_, warp_;
  HalfScales* const scales_;
  const float input_scale_, gradient_scale_;
  DiscardFlag discard_;
  RingCursor cursor_;
  int ring_slot_ = 0;  // that the next stage of X' goes to
};

}  // namespace convx
