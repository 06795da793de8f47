// The loader warps of the row kernel: raw rows of X and dY into shared memory by cp.async.
//
// All rows of a tensor begin at multiples of a unit of 4, 8 or 16 bytes, and so do the pieces that
// are copied: a piece of an input row begins up to a unit before the first pixel that is needed. A
// unit thus lies in the image or outside of it; cp.async writes zeros for those outside, and for
// channels and filters beyond the last.
#pragma once

#include "device/async_copy.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/weight_grad/rows_memory.cuh"

namespace convx {

// A piece of an input row, of every channel of a block.
struct RawRows {
  const char* first;  // the piece of the first channel; it may begin outside of the image
  int channel_bytes;  // from one channel to the next
  int channels;       // that the tensor has, from the first on
  int begin, end;     // bytes of the piece that lie in the image
};

// Calls copy<unit>(): cp.async has the number of bytes in the instruction.
template <typename Copy>
__device__ __forceinline__ void visit_unit(int unit, const Copy& copy) {
  if (unit == 16) {
    copy.template operator()<16>();
  } else if (unit == 8) {
    copy.template operator()<8>();
  } else {
    copy.template operator()<4>();
  }
}

template <typename T>
class RowLoader {
  static constexpr int kBytes = sizeof(T), kRowBytes = kStepPixels * kBytes;
  // Lanes that copy one row of a step.
  template <int kUnit>
  static constexpr int kLanesOf = kRowBytes / kUnit < 32 ? kRowBytes / kUnit : 32;
  static constexpr int kTailLanes = 4;  // that copy the end of an input row

 public:
  __device__ RowLoader(const WgradGeometry& g, const WgradCall& call, const RowsMemory& memory,
                       const WgradWork& work, int warp)
      : g_(g), call_(call), memory_(memory), work_(work), warp_(warp), window_(g, work.tile) {}

  __device__ void run() {
    for (int i = 0; i < work_.stages; ++i) {
      const RowRun run(g_, work_.first_stage + i * work_.stage_step);
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
    visit_unit(t.input_unit, [&]<int kUnit>() { copy_input<kUnit>(rows, to); });
    arrive_after_copies(memory_.input_full + 8 * input_stage_.slot);
    input_stage_.advance(t.input_stages);
  }

  __device__ __forceinline__ void load_gradient(const RowRun& run, int row) {
    const int first_filter = work_.tile.filter_tile * kTileFilters;
    const int64_t offset = run.image * g_.y_strides.n + first_filter * g_.y_strides.c +
                           (run.first_row + row) * g_.y_strides.h + run.first_column;
    const char* const first = static_cast<const char*>(call_.y) + offset * kBytes;
    const int filters = g_.filters - first_filter;
    const int row_bytes = (g_.out_width - run.first_column) * kBytes;
    const uint32_t to = memory_.gradient + gradient_stage_.slot * memory_.gradient_stage_bytes;
    wait_barrier(memory_.gradient_empty + 8 * gradient_stage_.slot, gradient_stage_.parity ^ 1);
    for (int tile = 0; tile < g_.block_filter_tiles; ++tile) {
      const char* const from = first + tile * kTileFilters * (g_.y_strides.c * kBytes);
      const int own_filters = filters - tile * kTileFilters;
      const uint32_t own_to = to + tile * kTileFilters * gradient_pitch(kBytes);
      if (own_filters <= 0) {
        clear_rows(own_to);
        continue;
      }
      visit_unit(g_.row_tiles.gradient_unit,
                 [&]<int kUnit>() { copy_gradient<kUnit>(from, own_filters, row_bytes, own_to); });
    }
    arrive_after_copies(memory_.gradient_full + 8 * gradient_stage_.slot);
    gradient_stage_.advance(g_.stages);
  }

  // Copies the step's pixels of 64 filters. Few instructions per row count here: all of a warp's
  // copies are unrolled, and differ by a stride of the source and a constant of the destination.
  template <int kUnit>
  __device__ __forceinline__ void copy_gradient(const char* first, int filters, int row_bytes,
                                                uint32_t to) const {
    constexpr int kPitch = gradient_pitch(kBytes), kLanes = kLanesOf<kUnit>;
    constexpr int kRows = 32 / kLanes, kStep = kRows * kRowLoaderWarps;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int own_row = warp_ * kRows + lane / kLanes, last = filters - 1;
    const int64_t step_bytes = kStep * g_.y_strides.c * kBytes;
#pragma unroll
    for (int half = 0; half < kRowBytes / (kLanes * kUnit); ++half) {
      const int unit = lane % kLanes * kUnit + half * kLanes * kUnit;
      const bool is_inside = unit < row_bytes;
      // The row's first unit stands in for those outside: they are zeros, whatever is read.
      const char* from = first + (is_inside ? unit : 0);
      // Swizzled rows: 8 rows later the pattern is the same.
      const uint32_t place = own_row * kPitch + unit;
      const uint32_t even = to + (kBytes == 2 ? swizzle(place, 128) : place);
      const uint32_t odd = kBytes == 2 && kStep == 4 ? even ^ 64 : even;
      if (last >= kTileFilters - 1) {
        from += own_row * (g_.y_strides.c * kBytes);
#pragma unroll
        for (int i = 0; i < kTileFilters / kStep; ++i) {
          copy_async<kUnit>((i % 2 == 0 ? even : odd) + i * kStep * kPitch, from, is_inside);
          from += step_bytes;
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < kTileFilters / kStep; ++i) {
          const int row = own_row + i * kStep;
          copy_async<kUnit>((i % 2 == 0 ? even : odd) + i * kStep * kPitch,
                            from + min(row, last) * (g_.y_strides.c * kBytes),
                            is_inside && row <= last);
        }
      }
    }
  }

  // Clears 64 rows, of filters that the tensor does not have.
  __device__ __forceinline__ void clear_rows(uint32_t to) const {
    for (int i = static_cast<int>(threadIdx.x) % 32 + 32 * warp_;
         i < kTileFilters * gradient_pitch(kBytes) / 16; i += 32 * kRowLoaderWarps) {
      copy_async<16>(to + 16 * i, call_.y, false);
    }
  }

  // Copies whole input rows.
  template <int kUnit>
  __device__ __forceinline__ void copy_input(const RawRows& rows, uint32_t to) const {
    constexpr int kLanes = kLanesOf<kUnit>, kWidth = kLanes * kUnit;
    const int pitch = g_.row_tiles.input_pitch;
    int offset = 0;
#pragma unroll 1
    for (; offset + kWidth <= pitch; offset += kWidth) {
      copy_columns<kUnit, kLanes>(rows, to, offset);
    }
    // A few units remain of each row; more rows at a time take fewer instructions.
#pragma unroll 1
    for (; offset < pitch; offset += kTailLanes * kUnit) {
      copy_columns<kUnit, kTailLanes>(rows, to, offset);
    }
  }

  // Copies kLanes units of every row, from `offset` bytes on: a warp 32 / kLanes rows at a time.
  template <int kUnit, int kLanes>
  __device__ __forceinline__ void copy_columns(const RawRows& rows, uint32_t to, int offset) const {
    constexpr int kRows = 32 / kLanes, kStep = kRows * kRowLoaderWarps;
    const int lane = static_cast<int>(threadIdx.x) % 32, pitch = g_.row_tiles.input_pitch;
    const int unit = lane % kLanes * kUnit + offset, channels = g_.row_tiles.block_channels;
    int channel = warp_ * kRows + lane / kLanes;
    if (unit >= pitch) return;
    const bool is_inside = unit >= rows.begin && unit < rows.end;
    // The row's first pixel stands in for those outside: they are zeros, whatever is read.
    const char* from = rows.first + (is_inside ? unit : rows.begin);
    to += channel * pitch + unit;
    if (rows.channels >= channels) {
      from += int64_t{channel} * rows.channel_bytes;
      // Blocks have a multiple of 16 channels.
      constexpr int kTogether = kStep < 16 ? 16 / kStep : 1;
#pragma unroll 1
      for (; channel < channels; channel += kTogether * kStep) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          copy_async<kUnit>(to, from, is_inside);
          from += int64_t{kStep} * rows.channel_bytes;
          to += kStep * pitch;
        }
      }
    } else {
#pragma unroll 1
      for (; channel < channels; channel += kStep) {
        const bool has_channel = channel < rows.channels;
        copy_async<kUnit>(to, has_channel ? from + int64_t{channel} * rows.channel_bytes : call_.x,
                          is_inside && has_channel);
        to += kStep * pitch;
      }
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
