// The loader warps of the row kernel: raw rows of X and dY into shared memory by cp.async.
//
// All rows of a tensor begin at multiples of a unit of 4, 8 or 16 bytes, and so do the pieces that
// are copied: a piece of an input row begins up to a unit before the first pixel that is needed. A
// unit thus lies in the image or outside of it; cp.async writes zeros for those outside, and for
// channels and filters beyond the last.
#pragma once

#include "device/async_copy.cuh"
#include "device/swizzle.cuh"
#include "engines/cuda_weight_grad/rows_memory.cuh"

namespace convx {

// A piece of a row of every channel or filter of a block.
struct RawRows {
  const char* first;  // the piece of the first channel; it may begin outside of the image
  int channel_bytes;  // from one channel to the next
  int channels;       // that the tensor has, from the first on
  int begin, end;     // bytes of the piece that lie in the image
};

template <typename T>
class RowLoader {
  static constexpr int kBytes = sizeof(T);

 public:
  __device__ RowLoader(const WgradGeometry& g, const WgradCall& call, const RowsMemory& memory,
                       const WgradWork& work, int warp)
      : g_(g), call_(call), memory_(memory), work_(work), warp_(warp), window_(g, work.tile) {}

  __device__ void run() {
    for (int i = 0; i < work_.stages; ++i) {
      const RowRun run(g_, static_cast<int>(work_.first_stage) + i);
      int loaded = 0;
      for (int row = 0; row < run.rows; ++row) {
        for (; loaded < row * window_.advance + window_.span; ++loaded) load_input(run, loaded);
        load_gradient(run, row);
      }
    }
  }

 private:
  __device__ __forceinline__ void load_input(const RowRun& run, int index) {
    const RowTiles& t = g_.row_tiles;
    const int first_channel = work_.tile.channel_tile * g_.atom_channels;
    const int row = window_.find_row(g_, run, index);
    const int column = run.first_column * g_.stride_w - g_.pad_left - t.input_shift;
    const int64_t offset =
        run.image * g_.x_strides.n + first_channel * g_.x_strides.c + row * g_.x_strides.h + column;
    RawRows rows;
    rows.first = static_cast<const char*>(call_.x) + offset * kBytes;
    rows.channel_bytes = static_cast<int>(g_.x_strides.c * kBytes);
    rows.channels = row >= 0 && row < g_.height ? g_.channels - first_channel : 0;
    rows.begin = -column * kBytes;
    rows.end = (g_.width - column) * kBytes;
    const uint32_t to = memory_.input + input_stage_.slot * memory_.input_stage_bytes;
    wait_barrier(memory_.input_empty + 8 * input_stage_.slot, input_stage_.parity ^ 1);
    if (t.input_unit == 16) {
      copy_rows<16, false>(rows, call_.x, to, t.input_pitch, t.input_pitch, t.block_channels);
    } else if (t.input_unit == 8) {
      copy_rows<8, false>(rows, call_.x, to, t.input_pitch, t.input_pitch, t.block_channels);
    } else {
      copy_rows<4, false>(rows, call_.x, to, t.input_pitch, t.input_pitch, t.block_channels);
    }
    arrive_after_copies(memory_.input_full + 8 * input_stage_.slot);
    input_stage_.advance(t.input_stages);
  }

  __device__ __forceinline__ void load_gradient(const RowRun& run, int row) {
    const int first_filter = work_.tile.filter_tile * kTileFilters;
    const int64_t offset = run.image * g_.y_strides.n + first_filter * g_.y_strides.c +
                           (run.first_row + row) * g_.y_strides.h + run.first_column;
    RawRows rows;
    rows.first = static_cast<const char*>(call_.y) + offset * kBytes;
    rows.channel_bytes = static_cast<int>(g_.y_strides.c * kBytes);
    rows.channels = g_.filters - first_filter;
    rows.begin = 0;
    rows.end = (g_.out_width - run.first_column) * kBytes;
    const int filters = g_.block_filter_tiles * kTileFilters;
    const uint32_t to = memory_.gradient + gradient_stage_.slot * memory_.gradient_stage_bytes;
    constexpr int kPitch = gradient_pitch(kBytes);
    wait_barrier(memory_.gradient_empty + 8 * gradient_stage_.slot, gradient_stage_.parity ^ 1);
    if (g_.row_tiles.gradient_unit == 16) {
      copy_rows<16, kBytes == 2>(rows, call_.y, to, kPitch, kStepPixels * kBytes, filters);
    } else if (g_.row_tiles.gradient_unit == 8) {
      copy_rows<8, kBytes == 2>(rows, call_.y, to, kPitch, kStepPixels * kBytes, filters);
    } else {
      copy_rows<4, kBytes == 2>(rows, call_.y, to, kPitch, kStepPixels * kBytes, filters);
    }
    arrive_after_copies(memory_.gradient_full + 8 * gradient_stage_.slot);
    gradient_stage_.advance(g_.stages);
  }

  // Copies so many bytes of each row, a warp several rows at a time. base: an address that can be
  // read, for units that are zeros.
  template <int kUnit, bool kSwizzles>
  __device__ __forceinline__ void copy_rows(const RawRows& rows, const void* base, uint32_t to,
                                            int pitch, int bytes, int count) const {
    // Lanes of one row: as many as a step's pixels have units.
    constexpr int kLanes = kStepPixels * kBytes / kUnit < 32 ? kStepPixels * kBytes / kUnit : 32;
    constexpr int kRows = 32 / kLanes, kStep = kRows * kRowLoaderWarps;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int unit = lane % kLanes * kUnit;
    int channel = warp_ * kRows + lane / kLanes;
    const char* row = rows.first + int64_t{channel} * rows.channel_bytes + unit;
    const auto length = static_cast<uint32_t>(rows.end - rows.begin);
#pragma unroll 2
    for (; channel < count; channel += kStep) {
      const bool has_channel = channel < rows.channels;
      const uint32_t place = channel * pitch + unit;
#pragma unroll 1
      for (int offset = 0; offset + unit < bytes; offset += kLanes * kUnit) {
        const auto at = static_cast<uint32_t>(unit + offset - rows.begin);
        const bool is_inside = has_channel && at < length;
        const void* const from = is_inside ? row + offset : base;
        copy_async<kUnit>(to + (kSwizzles ? swizzle(place, 128) : place + offset), from, is_inside);
      }
      row += int64_t{kStep} * rows.channel_bytes;
    }
  }

  const WgradGeometry& g_;
  const WgradCall& call_;
  const RowsMemory& memory_;
  const WgradWork& work_;
  const int warp_;
  const RowWindow window_;
  RingCursor input_stage_, gradient_stage_;
};

}  // namespace convx
