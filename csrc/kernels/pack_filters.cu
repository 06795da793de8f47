// The kernel behind pack_filters:
//
//     packed[group][filter][tap][channel] = w[filter][channel][r][s], or 0 if the kernel has no
//                                           such index
//
// A block transposes 32 rows, each one tap of one filter, by 32 channels through shared memory:
//
//     load   a warp reads one channel of 32 rows, which are neighbours in w
//     store  a warp writes 32 channels of one row
//
// If the channels are contiguous in w, a warp reads 32 channels of one row instead. Consecutive
// blocks read consecutive rows, so that together they read long stretches of w. Values are moved as
// bits. Shared memory: one tile, padded by one value per line against bank conflicts.
#include "kernels/pack_filters.h"

#include "cuda/launch.h"
#include "device/dependent_launch.cuh"

namespace convx {
namespace {

constexpr int kPackThreads = 256;
constexpr int kPackPitch = kPackTile + 1;

// A row of the packed filters: its number as [filter][tap], and the place of its weights.
struct PackRow {
  int index;
  bool has_weights;
  int64_t offset;  // of the first channel in w, from the group's start

  __device__ __forceinline__ PackRow(const FilterPack& p, int row) {
    int filter = row, tap;
    if (p.taps_are_fastest) {
      tap = p.by_fastest.split(filter);
    } else {
      tap = row;
      filter = p.by_fastest.split(tap);
    }
    index = filter * p.taps + tap;
    int channel = 0;
    if (p.phase_is_slowest) channel = p.by_filters.split(filter);
    const int column_phase = p.by_column_phases.split(filter);
    const int row_phase = p.by_row_phases.split(filter);
    if (!p.phase_is_slowest) channel = filter;
    int tap_row = tap;
    const int tap_column = p.by_tap_columns.split(tap_row);
    const int r = find_kernel_index(p.r, row_phase, tap_row);
    const int s = find_kernel_index(p.s, column_phase, tap_column);
    has_weights = row < p.rows && static_cast<unsigned>(r) < static_cast<unsigned>(p.r.kernel) &&
                  static_cast<unsigned>(s) < static_cast<unsigned>(p.s.kernel);
    offset = channel * p.strides.filter + r * p.strides.r + s * p.strides.s;
  }

 private:
  __device__ __forceinline__ static int find_kernel_index(const PackAxis& axis, int phase,
                                                          int tap) {
    int turns = phase + axis.shift;
    const int residue = axis.by_phases.split(turns);
    return axis.first + residue + tap * axis.tap_step;
  }
};

}  // namespace

template <typename Bits>
__global__ void __launch_bounds__(kPackThreads)
    pack_filters_kernel(const __grid_constant__ FilterPack p) {
  extern __shared__ __align__(16) char memory[];
  Bits* const tile = reinterpret_cast<Bits*>(memory);  // [channel][row]
  wait_for_kernels_before();
  let_next_kernel_start();
  if (p.cleared != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.cleared = 0;
  int group = blockIdx.x;
  const int first_row = p.by_row_tiles.split(group) * kPackTile;
  const int first_channel = p.by_channel_tiles.split(group) * kPackTile;
  const int lane = threadIdx.x % kPackTile, line = threadIdx.x / kPackTile;
  constexpr int kLines = kPackThreads / kPackTile;

  const Bits* const filters = static_cast<const Bits*>(p.filters) + group * p.strides.group;
  const auto load = [&](const PackRow& row, int channel) {
    const bool exists = row.has_weights && first_channel + channel < p.channels;
    return exists ? filters[row.offset + (first_channel + channel) * p.strides.channel] : Bits{0};
  };
  // All loads before the first store: the compiler cannot know that the two memories differ.
  Bits values[kPackTile / kLines];
  if (p.channels_are_contiguous) {
#pragma unroll
    for (int j = 0; j < kPackTile / kLines; ++j) {
      values[j] = load(PackRow(p, first_row + line + j * kLines), lane);
    }
#pragma unroll
    for (int j = 0; j < kPackTile / kLines; ++j) {
      tile[lane * kPackPitch + line + j * kLines] = values[j];
    }
  } else {
    const PackRow row(p, first_row + lane);
#pragma unroll
    for (int j = 0; j < kPackTile / kLines; ++j) values[j] = load(row, line + j * kLines);
#pragma unroll
    for (int j = 0; j < kPackTile / kLines; ++j) {
      tile[(line + j * kLines) * kPackPitch + lane] = values[j];
    }
  }
  __syncthreads();
  const int channel = first_channel + lane;
  if (channel >= p.channels) return;
#pragma unroll
  for (int j = line; j < kPackTile; j += kLines) {
    if (first_row + j >= p.rows) break;
    const int64_t row = static_cast<int64_t>(group) * p.rows + PackRow(p, first_row + j).index;
    static_cast<Bits*>(p.packed)[row * p.packed_channels + channel] = tile[lane * kPackPitch + j];
  }
}

void pack_filters(const LaunchSite& site, const FilterPack& pack, int64_t element_bytes) {
  const auto launch = [&]<typename Bits>(Bits) {
    const Grid grid(pack.blocks);
    launch_early<pack_filters_kernel<Bits>>(site, grid, kPackThreads,
                                            kPackTile * kPackPitch * sizeof(Bits), pack);
  };
  switch (element_bytes) {
    case 8:
      return launch(uint64_t{});
    case 4:
      return launch(uint32_t{});
    default:
      return launch(uint16_t{});
  }
}

}  // namespace convx
