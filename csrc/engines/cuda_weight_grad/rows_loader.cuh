// The loader warps of the row kernel: raw rows of X and dY into shared memory by cp.async.
//
// Rows begin at any element, and cp.async copies aligned units of 16 bytes. So a row is copied with
// the whole unit it begins in, and readers skip the bytes before it: the row's phase, its address
// modulo 16. Units without any pixel of the image are not read.
#pragma once

#include "device/async_copy.cuh"
#include "engines/cuda_weight_grad/rows_memory.cuh"

namespace convx {

// A piece of a row of every channel or filter of a block.
struct RawRows {
  const char* first;      // the piece of the first channel; it may begin outside of the image
  int64_t channel_bytes;  // from one channel to the next
  int channels;           // that the tensor has
  int begin, end;         // bytes of the piece that lie in the image
};

__device__ __forceinline__ int find_phase(const char* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
}

// The piece of an input row that a step reads.
template <typename T>
__device__ __forceinline__ RawRows find_input_rows(const WgradGeometry& g, const WgradCall& call,
                                                   const RowRun& run, int row, int first_channel) {
  constexpr int kBytes = sizeof(T);
  const int column = run.first_column * g.stride_w - g.pad_left;
  RawRows rows;
  const int64_t offset =
      run.image * g.x_strides.n + first_channel * g.x_strides.c + row * g.x_strides.h + column;
  rows.first = reinterpret_cast<const char*>(call.x) + offset * kBytes;
  rows.channel_bytes = g.x_strides.c * kBytes;
  rows.channels = row >= 0 && row < g.height ? g.channels - first_channel : 0;
  rows.begin = max(-column, 0) * kBytes;
  rows.end = min(g.row_tiles.piece_pixels, g.width - column) * kBytes;
  return rows;
}

// The piece of an output row that is a step.
template <typename T>
__device__ __forceinline__ RawRows find_gradient_rows(const WgradGeometry& g, const WgradCall& call,
                                                      const RowRun& run, int row,
                                                      int first_filter) {
  constexpr int kBytes = sizeof(T);
  RawRows rows;
  const int64_t offset = run.image * g.y_strides.n + first_filter * g.y_strides.c +
                         row * g.y_strides.h + run.first_column;
  rows.first = reinterpret_cast<const char*>(call.y) + offset * kBytes;
  rows.channel_bytes = g.y_strides.c * kBytes;
  rows.channels = g.filters - first_filter;
  rows.begin = 0;
  rows.end = min(kStepPixels, g.out_width - run.first_column) * kBytes;
  return rows;
}

template <typename T>
class RowLoader {
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
    const int stages = g_.row_tiles.input_stages;
    wait_barrier(memory_.input_empty + 8 * input_stage_.slot, input_stage_.parity ^ 1);
    const RawRows rows = find_input_rows<T>(g_, call_, run, window_.find_row(g_, run, index),
                                            work_.tile.channel_tile * g_.atom_channels);
    copy_rows(rows, memory_.input + input_stage_.slot * memory_.input_stage_bytes,
              g_.row_tiles.input_pitch, g_.row_tiles.block_channels);
    arrive_after_copies(memory_.input_full + 8 * input_stage_.slot);
    input_stage_.advance(stages);
  }

  __device__ __forceinline__ void load_gradient(const RowRun& run, int row) {
    wait_barrier(memory_.gradient_empty + 8 * gradient_stage_.slot, gradient_stage_.parity ^ 1);
    const RawRows rows = find_gradient_rows<T>(g_, call_, run, run.first_row + row,
                                               work_.tile.filter_tile * kTileFilters);
    copy_rows(rows, memory_.gradient + gradient_stage_.slot * memory_.gradient_stage_bytes,
              find_raw_pitch(kStepPixels * sizeof(T)), g_.block_filter_tiles * kTileFilters);
    arrive_after_copies(memory_.gradient_full + 8 * gradient_stage_.slot);
    gradient_stage_.advance(g_.stages);
  }

  // Eight lanes copy a row, four rows at a time. Rows beyond the tensor's last channel get copies
  // of that one: readers ignore them, and no lane has a loop of its own length.
  __device__ __forceinline__ void copy_rows(const RawRows& rows, uint32_t to, int pitch,
                                            int count) const {
    if (rows.channels <= 0) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int unit = lane % 8 * 16;
    const int last = rows.channels - 1, channel_bytes = static_cast<int>(rows.channel_bytes);
    const int low = rows.begin - 15;
    const uint32_t length = max(rows.end - low, 0);
    constexpr int kStep = 4 * kRowLoaderWarps;
    int channel = 4 * warp_ + lane / 8;
    to += channel * pitch + unit;
#pragma unroll 4
    for (int i = 0; i < count; i += kStep) {
      const char* const row = rows.first + int64_t{min(channel, last)} * channel_bytes;
      const int phase = find_phase(row);
      const char* const from = row - phase + unit;
      for (int offset = 0; offset < pitch; offset += 128) {
        const auto at = static_cast<uint32_t>(unit + offset - phase - low);
        copy_16_bytes_if(to + offset, from + offset, at < length);
      }
      channel += kStep, to += kStep * pitch;
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
