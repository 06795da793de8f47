// The producers of the weight gradient: a lane each for dY' and X' copies stages into shared
// memory, as far ahead as there is room. Packed operands come by bulk copies, others by TMA in
// im2col mode, whose numbering of pixels is that of positions (wgrad_geometry.h).
//
// A stage of narrow MMAs takes 600 cycles, and a lane issues an instruction every 5 or so: hence a
// lane for each operand, and loops without anything that could be computed before them.
#pragma once

#include "device/async_copy.cuh"
#include "device/mbarrier.cuh"
#include "engines/cuda/weight_grad/wgrad_work.cuh"

namespace convx {

// Where the position of a stage's first row is, stepped without divisions.
struct PositionCursor {
  int column, row, image;

  __device__ PositionCursor(const WgradGeometry& g, int position) : image(position) {
    column = g.by_pitch.split(image);
    row = g.by_rows.split(image);
  }

  // To the next stage.
  __device__ __forceinline__ void advance(const WgradGeometry& g, const StageStep& step) {
    column += step.column, row += step.row, image += step.image;
    if (column >= g.pitch) column -= g.pitch, ++row;
    if (row >= g.rows) row -= g.rows, ++image;
  }
};

// Calls copy(i, slot) for each stage of a block, once the memory of its slot is free.
template <typename Copy>
__device__ __forceinline__ void fill_stages(const WgradGeometry& g, const WgradMemory& memory,
                                            int stages, const Copy& copy) {
  RingCursor stage;
  for (int i = 0; i < stages; ++i, stage.advance(g.stages)) {
    wait_barrier(memory.empty + 8 * stage.slot, stage.parity ^ 1);
    copy(i, stage.slot);
  }
}

// Copies stages of dY'.
template <int kComponents>
class GradientProducer {
  static constexpr uint32_t kTileBytes = kStagePositions * kGradientRowBytes;

 public:
  __device__ GradientProducer(const WgradGeometry& g, const WgradCall& call, const WgradMaps& maps,
                              const WgradMemory& memory, const WgradWork& work)
      : g_(g),
        map_(&maps.gradient),
        memory_(memory),
        stages_(work.stages),
        is_packed_(g.gradient_source == OperandSource::kPacked),
        tiles_(g.block_filter_tiles),
        filter_(work.tile.filter_tile * kTileFilters),
        place_(g, static_cast<int>((call.first_stage + work.first_stage) * kStagePositions)),
        step_(call.step),
        tile_bytes_(g.gradient_rows * kGradientRowBytes),
        component_bytes_(g.filter_tiles * tile_bytes_),
        from_(call.packed_y + work.tile.filter_tile * tile_bytes_ +
              int64_t{work.first_stage} * kTileBytes) {}

  __device__ void run() {
    fill_stages(g_, memory_, stages_, [&](int, int slot) { copy_stage(slot); });
  }

 private:
  // Starts the copies of the next stage, whose memory is free.
  __device__ __forceinline__ void copy_stage(int slot) {
    const uint32_t barrier = memory_.full + 8 * slot;
    uint32_t to = memory_.gradient + slot * memory_.gradient_stage_bytes;
    arrive_expecting(barrier, memory_.gradient_stage_bytes);
    if (is_packed_) {
#pragma unroll 1
      for (int component = 0; component < kComponents; ++component) {
#pragma unroll 1
        for (int tile = 0; tile < tiles_; ++tile, to += kTileBytes) {
          bulk_copy(to, from_ + component * component_bytes_ + tile * tile_bytes_, kTileBytes,
                    barrier);
        }
      }
      from_ += kTileBytes;
      return;
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile, to += kTileBytes) {
      pixel_copy(to, map_, filter_ + tile * kTileFilters, place_.column, place_.row, place_.image,
                 0, 0, barrier);
    }
    place_.advance(g_, step_);
  }

  const WgradGeometry& g_;
  const TensorMap* const map_;
  const WgradMemory& memory_;
  const int stages_;
  const bool is_packed_;
  const int tiles_, filter_;
  PositionCursor place_;
  const StageStep& step_;
  const int64_t tile_bytes_, component_bytes_;
  const char* from_;
};

// Copies stages of X'. The block's first stage brings the halo along.
template <int kComponents>
class InputProducer {
 public:
  __device__ InputProducer(const WgradGeometry& g, const WgradCall& call, const WgradMaps& maps,
                           const WgradMemory& memory, const WgradWork& work)
      : InputProducer(g, call, maps, memory, work, g.groups[work.tile.first_group]) {}

  __device__ void run() {
    fill_stages(g_, memory_, stages_,
                [&](int i, int slot) { copy_stage(slot, i == 0 ? g_.halo_stages + 1 : 1); });
  }

 private:
  // Starts the copies of the next stages of X', whose memory is free, for the stage in a slot.
  __device__ __forceinline__ void copy_stage(int slot, int inputs) {
    const uint32_t barrier = memory_.full + 8 * slot;
    uint32_t copies = 0;  // stages, with mirrored ones counted twice
#pragma unroll 1
    for (int i = 0, ring_slot = ring_slot_; i < inputs; ++i) {
      copies += ring_slot < g_.mirrored_stages ? 2 : 1;
      if (++ring_slot == g_.ring_stages) ring_slot = 0;
    }
    arrive_expecting(barrier, copies * kComponents * tiles_ * memory_.input_stage_bytes);
#pragma unroll 1
    for (int i = 0; i < inputs; ++i) copy_input(barrier);
  }

  __device__ InputProducer(const WgradGeometry& g, const WgradCall& call, const WgradMaps& maps,
                           const WgradMemory& memory, const WgradWork& work, const TapGroup& group)
      : g_(g),
        map_(&maps.input),
        memory_(memory),
        stages_(work.stages),
        is_packed_(g.input_source == OperandSource::kPacked),
        tiles_(g.block_channel_tiles),
        channel_(work.tile.channel_tile * g.atom_channels),
        residue_(g.residues[group.residue]),
        place_(g, static_cast<int>((call.first_stage + work.first_stage) * kStagePositions) +
                      group.shift / 8 * 8),
        step_(call.step),
        tile_bytes_(g.input_rows * g.row_bytes),
        component_bytes_(int64_t{g.residue_count} * g.channel_tiles * tile_bytes_),
        from_(call.packed_x +
              (int64_t{group.residue} * g.channel_tiles + work.tile.channel_tile) * tile_bytes_ +
              (int64_t{work.first_stage} * kStagePositions + group.shift / 8 * 8) * g.row_bytes) {}

  // The next stage, of all components and channel tiles, and again where it is mirrored.
  __device__ __forceinline__ void copy_input(uint32_t barrier) {
    const uint32_t bytes = memory_.input_stage_bytes;
    uint32_t to = memory_.input + ring_slot_ * bytes;
    const bool is_mirrored = ring_slot_ < g_.mirrored_stages;
    const uint32_t mirror = g_.ring_stages * bytes;
    if (++ring_slot_ == g_.ring_stages) ring_slot_ = 0;
    if (is_packed_) {
#pragma unroll 1
      for (int component = 0; component < kComponents; ++component) {
#pragma unroll 1
        for (int tile = 0; tile < tiles_; ++tile, to += memory_.ring_bytes) {
          const char* const from = from_ + component * component_bytes_ + tile * tile_bytes_;
          bulk_copy(to, from, bytes, barrier);
          if (is_mirrored) bulk_copy(to + mirror, from, bytes, barrier);
        }
      }
      from_ += bytes;
      return;
    }
    const int column = place_.column * g_.stride_w - g_.packed_left;
    const int row = place_.row * g_.stride_h - g_.pad_top;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile, to += memory_.ring_bytes) {
      const int channel = channel_ + tile * g_.atom_channels;
      pixel_copy(to, map_, channel, column, row, place_.image, residue_.column, residue_.row,
                 barrier);
      if (!is_mirrored) continue;
      pixel_copy(to + mirror, map_, channel, column, row, place_.image, residue_.column,
                 residue_.row, barrier);
    }
    place_.advance(g_, step_);
  }

  const WgradGeometry& g_;
  const TensorMap* const map_;
  const WgradMemory& memory_;
  const int stages_;
  const bool is_packed_;
  const int tiles_, channel_;
  const StrideResidue residue_;
  PositionCursor place_;
  const StageStep& step_;
  int ring_slot_ = 0;  // that the next stage goes to
  const int64_t tile_bytes_, component_bytes_;
  const char* from_;
};

}  // namespace convx
