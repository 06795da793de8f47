// Epilogue of the gather kernel: adds the bias, rounds, and stores the accumulators.
#pragma once

#include "device/convert.cuh"
#include "device/vectors.cuh"
#include "engines/cuda/direct/gather_block.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

// Offset in the target of pixel x of a strip, or -1 outside the target.
template <typename Tile>
__device__ inline int64_t locate_pixel(const GatherParams& p, const GatherBlock& block, int strip,
                                       int x) {
  const AxisParams& row = *block.row;
  const AxisParams& column = *block.column;
  int rest = strip;
  int b = block.first_strip + p.by_strips.split(rest);
  const int i = (block.row_b + p.by_rows.split(rest)) * row.lanes + block.row_lane;
  const int image = block.first_image + rest;
  const int lane = column.by_lanes.split(b);
  const int j = (b * kStrip + x) * column.lanes + lane;
  if (rest >= p.tile_images || image >= p.images || i >= row.count || j >= column.count) return -1;
  return image * p.target_strides.n +
         (row.target_start + int64_t{i} * row.target_step) * p.target_strides.h +
         (column.target_start + int64_t{j} * column.target_step) * p.target_strides.w;
}

// Stores the tile; if `add` is set, it adds to the target. finishes: the sums are complete, and get
// bias and activation. A thread's 8 pixels of one filter would make each store instruction touch
// addresses 32 bytes apart, so each warp transposes its tile in shared memory and stores runs of
// neighbouring pixels. For a channels_last target it stores directly, because there a thread's
// filters are neighbours.
template <typename T, typename Tile>
__device__ inline void store_tile(const GatherParams& p, const GatherBlock& block, int first_filter,
                                  int strip, bool add, bool finishes, accumulate_t<T>* buffer,
                                  accumulate_t<T> (&sum)[Tile::kPerThread][kStrip]) {
  using Acc = accumulate_t<T>;
  constexpr int kRun = Tile::kWarpStrips * kStrip;  // pixels of a warp
  const int lane = threadIdx.x % 32;
  const int group_filter = block.group * p.target_channels;
  T* target = static_cast<T*>(p.target);
  const auto store = [&](T* element, Acc value) {
    if (add) value += to_accumulate(*element);
    if (finishes) value = at_least(value, p.lowest);
    *element = round_to<T>(value);
  };
#pragma unroll
  for (int f = 0; f < Tile::kPerThread; ++f) {
    const int k = first_filter + f;
    if (!finishes || p.bias == nullptr || k >= p.target_channels) continue;
    const Acc bias = to_accumulate(static_cast<const T*>(p.bias)[group_filter + k]);
#pragma unroll
    for (int x = 0; x < kStrip; ++x) sum[f][x] += bias;
  }
  if (p.target_strides.c == 1 && p.target_strides.w != 1) {
    for (int x = 0; x < kStrip; ++x) {
      const int64_t offset = locate_pixel<Tile>(p, block, strip, x);
      if (offset < 0) continue;
#pragma unroll
      for (int f = 0; f < Tile::kPerThread; ++f) {
        Acc value = 0;
#pragma unroll
        for (int i = 0; i < kStrip; ++i) value = i == x ? sum[f][i] : value;
        if (first_filter + f < p.target_channels) {
          store(target + offset + group_filter + first_filter + f, value);
        }
      }
    }
    return;
  }
  // buffer is [lane group][pixel of the warp]; this thread reads pixels lane, lane + 32, ...
  constexpr int kReads = kRun / 32;
  const int warp_strip = strip / Tile::kWarpStrips * Tile::kWarpStrips;
  int64_t offsets[kReads];
#pragma unroll
  for (int i = 0; i < kReads; ++i) {
    const int pixel = i * 32 + lane;
    offsets[i] = locate_pixel<Tile>(p, block, warp_strip + pixel / kStrip, pixel % kStrip);
  }
  const int warp_filter = first_filter / (Tile::kPerThread * Tile::kLaneGroups) *
                          (Tile::kPerThread * Tile::kLaneGroups);
  const int lane_group = (first_filter - warp_filter) / Tile::kPerThread;
  Acc* mine = buffer + lane_group * kRun + (strip - warp_strip) * kStrip;
#pragma unroll
  for (int f = 0; f < Tile::kPerThread; ++f) {
    store_vec4(mine, &sum[f][0]);
    store_vec4(mine + 4, &sum[f][4]);
    __syncwarp();
#pragma unroll
    for (int group = 0; group < Tile::kLaneGroups; ++group) {
      const int k = warp_filter + group * Tile::kPerThread + f;
      T* plane = target + (int64_t{group_filter} + k) * p.target_strides.c;
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        if (k < p.target_channels && offsets[i] >= 0) {
          store(plane + offsets[i], buffer[group * kRun + i * 32 + lane]);
        }
      }
    }
    __syncwarp();
  }
}

}  // namespace convx
