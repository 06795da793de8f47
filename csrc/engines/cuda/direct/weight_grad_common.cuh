// What the weight-gradient kernels and their launches share.
//
// The gradient of one group is a matrix [filters][columns], a column being one (c, r, s) with s
// fastest, and the reduction runs over all pixels (n, p, q):
//     dw[k][c, r, s] = sum over pixels of  y[n][k][p][q] * x[n][c][p*st_h + r*dil_h - pad]
//                                                               [q*st_w + s*dil_w - pad]
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/plan.h"
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/direct/weight_grad_geometry.h"

namespace convx {

// The offset of one column in x, relative to a pixel's tap (0, 0).
struct alignas(16) ColumnOffset {
  int64_t elements;
  int h, w;  // far outside the image if the column does not exist, so that nothing is read
};

struct WeightGradTile {
  int64_t index;  // within this launch's slice of tiles
  int split;
  int group, filter, column;  // the first of the tile
};

__device__ inline WeightGradTile locate_tile(const WeightGradParams& p, int tile_filters,
                                             int tile_columns) {
  WeightGradTile tile;
  tile.index = blockIdx.x % p.tiles;
  tile.split = blockIdx.x / p.tiles;
  int64_t rest = p.first_tile + tile.index;
  tile.column = static_cast<int>(rest % p.column_tiles) * tile_columns;
  rest /= p.column_tiles;
  tile.filter = static_cast<int>(rest % p.filter_tiles) * tile_filters;
  tile.group = static_cast<int>(rest / p.filter_tiles);
  return tile;
}

__device__ inline ColumnOffset locate_column(const WeightGradParams& p, int column) {
  const int s = column % p.S;
  const int r = column / p.S % p.R;
  const int c = column / p.S / p.R;
  if (c >= p.channels) return {0, -(1 << 30), -(1 << 30)};
  const int h = r * p.dilation_h;
  const int w = s * p.dilation_w;
  return {c * p.x_strides.c + h * p.x_strides.h + w * p.x_strides.w, h, w};
}

// A pixel of the reduction that advances in constant steps.
struct PixelWalk {
  int n, p, q;

  __device__ PixelWalk(const WeightGradParams& params, int64_t pixel) {
    q = static_cast<int>(pixel % params.Q);
    pixel /= params.Q;
    p = static_cast<int>(pixel % params.P);
    n = static_cast<int>(pixel / params.P);
  }

  __device__ void advance(const WeightGradParams& params, int step) {
    q += step;
    if (q < params.Q) return;
    int rest = q;
    q = params.by_Q.split(rest);
    p += rest;
    if (p < params.P) return;
    rest = p;
    p = params.by_P.split(rest);
    n += rest;
  }
};

__device__ inline int64_t locate_y(const WeightGradParams& params, const PixelWalk& at) {
  return at.n * params.y_strides.n + at.p * params.y_strides.h + at.q * params.y_strides.w;
}

__device__ inline bool has_weight(const WeightGradParams& p, int filter, int column) {
  return filter < p.filters && column < p.channels * p.R * p.S;
}

__device__ inline int64_t locate_weight(const WeightGradParams& p, int group, int filter,
                                        int column) {
  const int s = column % p.S;
  const int r = column / p.S % p.R;
  const int c = column / p.S / p.R;
  const int64_t k = int64_t{group} * p.filters + filter;
  return k * p.w_strides.n + c * p.w_strides.c + r * p.w_strides.h + s * p.w_strides.w;
}

template <typename T>
__device__ inline void write_weight(const WeightGradParams& p, int group, int filter, int column,
                                    accumulate_t<T> value) {
  if (!has_weight(p, filter, column)) return;
  static_cast<T*>(p.w)[locate_weight(p, group, filter, column)] = round_to<T>(value);
}

constexpr int kReduceThreads = 256;

// Threads that add the slices of one element: each has a few loads to wait for.
constexpr int count_reduce_lanes(int splits) {
  int lanes = 1;
  while (lanes < 16 && 8 * lanes < splits) lanes *= 2;
  return lanes;
}

// Second pass: adds the split-K slices in a fixed order and writes w. Every element of the launch's
// tiles has `lanes` threads, each of which adds every lanes-th slice; the first one adds their
// sums. It sums in float64, because the slices are many and it costs nothing here.
// Shared memory: a float64 per thread, [lane][element].
template <typename Acc>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_splits_kernel(const __grid_constant__ WeightGradParams p, DType dtype, int tile_filters,
                         int tile_columns, int lanes) {
  extern __shared__ __align__(16) char memory[];
  auto* const lane_sums = reinterpret_cast<double*>(memory);
  const int64_t tile_elements = int64_t{tile_filters} * tile_columns;
  const int64_t elements = p.tiles * tile_elements;
  const Acc* partial = static_cast<const Acc*>(p.partial);
  const int thread = static_cast<int>(threadIdx.x);
  const int block_elements = kReduceThreads / lanes;
  const int own = thread % block_elements;
  for (int64_t first = int64_t{blockIdx.x} * block_elements; first < elements;
       first += int64_t{gridDim.x} * block_elements) {
    const int64_t i = first + own;
    double sum = 0;
    if (i < elements) {
#pragma unroll 8
      for (int split = thread / block_elements; split < p.splits; split += lanes) {
        sum += static_cast<double>(partial[split * elements + i]);
      }
    }
    if (lanes > 1) {
      __syncthreads();  // until nobody reads the sums of the elements before
      lane_sums[thread] = sum;
      __syncthreads();
    }
    if (thread >= block_elements || i >= elements) continue;
    for (int lane = 1; lane < lanes; ++lane) sum += lane_sums[lane * block_elements + own];
    int64_t tile = p.first_tile + i / tile_elements;
    const int within = static_cast<int>(i % tile_elements);
    const int column =
        static_cast<int>(tile % p.column_tiles) * tile_columns + within % tile_columns;
    tile /= p.column_tiles;
    const int filter =
        static_cast<int>(tile % p.filter_tiles) * tile_filters + within / tile_columns;
    const int group = static_cast<int>(tile / p.filter_tiles);
    if (!has_weight(p, filter, column)) continue;
    store_as(dtype, p.w, locate_weight(p, group, filter, column), static_cast<Acc>(sum));
  }
}

// Launches a weight gradient: its tiles, as many at a time as the workspace holds partial sums for,
// and the reduction of their split-K slices. launch_tile<config>(params, blocks) launches the
// kernel of a configuration.
template <typename T, typename LaunchTile>
void launch_weight_grad(const LaunchSite& site, const WeightGradFit& fit, const Buffers& buffers,
                        const LaunchTile& launch_tile) {
  const WeightGradShape& shape = fit.shape;
  const WeightGradConfig& config = kWeightGradConfigs[shape.config];
  WeightGradParams params = fit.params;
  params.x = buffers.x;
  params.y = buffers.y;
  params.w = buffers.w;
  if (shape.is_transposed) std::swap(params.x, params.y);
  params.x_has_units = reinterpret_cast<uintptr_t>(params.x) % 16 == 0;
  params.partial = buffers.workspace;
  const int64_t most_tiles = std::min<int64_t>(shape.tiles_per_launch, (1 << 30) / shape.split);
  for (int64_t first = 0; first < shape.tiles; first += most_tiles) {
    params.first_tile = first;
    params.tiles = static_cast<int>(std::min(most_tiles, shape.tiles - first));
    const Grid blocks(int64_t{params.tiles} * params.splits);
    launch_listed<kWeightGradConfigs>(site, config, [&]<WeightGradConfig kConfig>() {
      launch_tile.template operator()<kConfig>(params, blocks);
    });
    if (shape.direct) continue;
    const int64_t elements = int64_t{params.tiles} * config.filters * config.columns;
    const int lanes = count_reduce_lanes(params.splits);
    launch_kernel<reduce_splits_kernel<accumulate_t<T>>>(
        site, count_loop_blocks(elements * lanes, kReduceThreads), kReduceThreads,
        kReduceThreads * sizeof(double), params, site.problem->dtype, config.filters,
        config.columns, lanes);
  }
}

}  // namespace convx
