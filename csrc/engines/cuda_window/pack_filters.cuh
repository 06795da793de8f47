// Filters in the order and form in which the tensor cores read them:
//   packed [filter tile][chunk][tap][half of the tile][plane][64 filters][lane_bytes of channels],
// each [64][lane_bytes] swizzled as in shared memory, so that whole stages are copied as they are.
#pragma once

#include "device/convert.cuh"
#include "engines/cuda_window/window_params.h"
#include "engines/cuda_window/window_units.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// One block: a chunk of the channels of a few filters, all taps. Grid: (filters / rows, chunks).
// Neighbouring threads read neighbouring taps and channels, and write neighbouring bytes.
template <TensorMath kMath, typename T>
__global__ void pack_filters_kernel(const __grid_constant__ WindowParams p, int rows) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // like the kernels that read what it writes
  using Unit = WindowUnit<kMath>;
  extern __shared__ float staged[];  // [rows][chunk_channels][taps]
  const bool folded = p.load == WindowLoad::kFolded;
  const int first_row = blockIdx.x * rows;         // of all filter tiles, 64 a half
  const int half = first_row / kWindowFilters;     // of all tiles
  const int filter_tile = half / p.filter_groups;  // of all groups
  const int group = filter_tile / p.filter_tiles;
  const int tile_filters = kWindowFilters * p.filter_groups;
  const int first_filter =
      (filter_tile - group * p.filter_tiles) * tile_filters + first_row % tile_filters;
  const int first_channel = blockIdx.y * p.chunk_channels;
  const int per_row = p.chunk_channels * p.taps;
  const T* filters = static_cast<const T*>(p.filters) + group * p.filter_group;

  for (int i = threadIdx.x; i < rows * per_row; i += blockDim.x) {
    const int row = i / per_row;
    const int inner = i - row * per_row;
    // Folded channels hold the taps: channel-major, as the filters themselves usually lie.
    const int lane = first_channel * (folded ? 1 : p.taps) + inner;
    const int taps = p.tap_rows * p.tap_columns;
    const int channel = lane / taps;
    const int tap = lane - channel * taps;
    const int r = p.tap_r0 + tap / p.tap_columns * p.tap_r_step;
    const int s = p.tap_s0 + tap % p.tap_columns * p.tap_s_step;
    const int filter = first_filter + row;
    const bool inside = filter < p.group_targets && channel < p.group_sources;
    staged[i] = inside
                    ? to_accumulate(filters[filter * p.filter_target + channel * p.filter_source +
                                            r * p.filter_r + s * p.filter_s])
                    : 0.f;
  }
  __syncthreads();

  const int plane_bytes = kWindowFilters * p.lane_bytes;
  const int tap_bytes = p.filter_groups * Unit::kPlanes * plane_bytes;
  char* chunk = static_cast<char*>(const_cast<void*>(p.packed)) +
                (static_cast<int64_t>(filter_tile) * p.chunks + blockIdx.y) * p.taps * tap_bytes +
                (half - filter_tile * p.filter_groups) * Unit::kPlanes * plane_bytes;
  const int units = p.lane_bytes / Unit::kBytes;
  for (int i = threadIdx.x; i < p.taps * rows * units; i += blockDim.x) {
    const int unit = i % units;
    const int row = i / units % rows;
    const int tap = i / units / rows;
    const float* from = staged + row * per_row + unit * 8 * p.taps + tap;
    float values[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) values[c] = from[c * p.taps];
    const uint32_t offset = swizzle(
        (first_row % kWindowFilters + row) * p.lane_bytes + unit * Unit::kBytes, p.lane_bytes);
    char* to = chunk + static_cast<int64_t>(tap) * tap_bytes;
    constexpr int kValues = OperandWords<kMath>::kValues;
#pragma unroll
    for (int piece = 0; piece < 8 / kValues; ++piece) {
      const OperandWords<kMath> words(values + piece * kValues);
#pragma unroll
      for (int plane = 0; plane < Unit::kPlanes; ++plane) {
        *reinterpret_cast<uint4*>(to + plane * plane_bytes + (offset ^ (16 * piece))) =
            words.part[plane];
      }
    }
  }
#endif
}

}  // namespace convx
