// Fills the gather kernel's parameters and launches it, once per slice of phases.
#pragma once

#include <algorithm>
#include <limits>

#include "core/buffers.h"
#include "cuda/launch.h"
#include "engines/cuda_direct/gather_kernel.cuh"
#include "engines/cuda_direct/gather_shape.h"
#include "engines/cuda_direct/pack_weights.cuh"

namespace convx {

inline AxisParams make_axis_params(const GatherAxis& axis, int64_t chunk_taps) {
  AxisParams params{};
  params.count = static_cast<int>(axis.count);
  params.target_start = static_cast<int>(axis.target_start);
  params.target_step = static_cast<int>(axis.target_step);
  params.source_step = static_cast<int>(axis.source_step);
  params.taps = static_cast<int>(axis.taps);
  params.tap0 = static_cast<int>(axis.tap0);
  params.tap_step = static_cast<int>(axis.tap_step);
  params.offset0 = static_cast<int>(axis.offset0);
  params.offset_step = static_cast<int>(axis.offset_step);
  params.lanes = static_cast<int>(axis.lanes);
  params.classes = static_cast<int>(axis.classes);
  params.period = static_cast<int>(axis.period);
  params.staged_classes = static_cast<int>(stage_axis(axis, chunk_taps).classes);
  params.by_staged_classes = FastDivmod(params.staged_classes);
  params.by_lanes = FastDivmod(params.lanes);
  return params;
}

inline AxisParams make_row_params(const GatherAxis& axis, const GatherShape& shape) {
  AxisParams params = make_axis_params(axis, shape.row_taps);
  const int64_t taps = stage_axis(axis, shape.row_taps).taps_per_class;
  params.staged_length = static_cast<int>(shape.rows + taps - 1);
  params.by_staged_length = FastDivmod(params.staged_length);
  return params;
}

inline AxisParams make_column_params(const GatherAxis& axis, const GatherShape& shape,
                                     const GatherView& view) {
  AxisParams params = make_axis_params(axis, shape.column_taps);
  const StagedColumns staged = stage_columns(axis, shape.column_taps, shape.strips, view);
  params.staged_length = static_cast<int>(staged.length);
  params.staged_strips = static_cast<int>(staged.strips);
  params.class_pitch = static_cast<int>(staged.class_pitch);
  params.strip_pitch = static_cast<int>(staged.strip_pitch);
  params.row_pitch = static_cast<int>(staged.row_pitch);
  params.runs = staged.runs;
  params.by_staged_length = FastDivmod(params.staged_length);
  params.by_staged_strips = FastDivmod(params.staged_strips);
  return params;
}

// Everything but the phases.
inline GatherParams make_gather_params(const ConvProblem& problem, const GatherView& view,
                                       const GatherShape& shape, const Buffers& buffers,
                                       bool packed) {
  const bool forward = problem.pass == Pass::kForward;
  GatherParams p{};
  p.source = forward ? buffers.x : buffers.y;
  p.target = forward ? buffers.y : buffers.x;
  p.weight = packed ? buffers.workspace : buffers.w;
  p.bias = forward && problem.has_bias ? buffers.bias : nullptr;
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  p.source_strides = {from.n, from.c, from.h, from.w};
  p.target_strides = {to.n, to.c, to.h, to.w};
  p.weight_group_stride = problem.filters_per_group() * problem.w_strides.n;
  p.weight_target_stride = view.weight_target_stride;
  p.weight_source_stride = view.weight_source_stride;
  p.weight_r_stride = problem.w_strides.h;
  p.weight_s_stride = problem.w_strides.w;
  p.images = static_cast<int>(problem.N);
  p.source_h = static_cast<int>(view.source_h);
  p.source_w = static_cast<int>(view.source_w);
  p.source_channels = static_cast<int>(view.source_channels);
  p.target_channels = static_cast<int>(view.target_channels);
  p.groups = static_cast<int>(problem.groups);
  for (const GatherAxis& axis : shape.columns_axes) {
    p.all_column_taps += static_cast<int>(axis.taps);
  }
  p.strips = static_cast<int>(shape.strips);
  p.rows = static_cast<int>(shape.rows);
  p.tile_images = static_cast<int>(shape.images);
  p.channels = static_cast<int>(shape.channels);
  p.row_taps = static_cast<int>(shape.row_taps);
  p.column_taps = static_cast<int>(shape.column_taps);
  p.filter_tiles = static_cast<int>(shape.filter_tiles);
  p.strip_tiles = static_cast<int>(shape.strip_tiles);
  p.row_tiles = static_cast<int>(shape.row_tiles);
  p.stage_elements = static_cast<int>(shape.stage_elements);
  p.weight_offset = static_cast<int>(shape.source_elements);
  p.packed = packed;
  p.channel_fastest = is_channel_fastest(from);
  p.table_offset = static_cast<int>(shape.table_offset);
  p.turn_offset = static_cast<int>(shape.turn_offset);
  p.chain_limit = static_cast<int>(shape.chain_limit);
  p.by_strips = FastDivmod(shape.strips);
  p.by_rows = FastDivmod(shape.rows);
  return p;
}

template <typename T, typename Tile>
void launch_gather_tile(const LaunchSite& site, GatherParams params, const GatherShape& shape) {
  const int64_t blocks_per_image_tile = shape.filter_tiles * params.groups * shape.strip_tiles *
                                        shape.row_tiles * params.row_phases * params.column_phases;
  const int64_t limit = std::numeric_limits<int>::max() / blocks_per_image_tile;
  for (int64_t first = 0; first < shape.image_tiles; first += limit) {
    const int64_t count = std::min(limit, shape.image_tiles - first);
    params.first_image = static_cast<int>(first * shape.images);
    const dim3 grid(static_cast<unsigned>(count * blocks_per_image_tile));
    if constexpr (std::is_same_v<T, float>) {
      if (shape.chain_limit > 0) {
        launch_kernel<gather_kernel<T, Tile, true>>(site, grid, Tile::kThreads, shape.shared_bytes,
                                                    params);
        continue;
      }
    }
    launch_kernel<gather_kernel<T, Tile, false>>(site, grid, Tile::kThreads, shape.shared_bytes,
                                                 params);
  }
}

// The tiles of kGatherConfigs, in the same order.
template <typename T>
void launch_gather_phases(const LaunchSite& site, const GatherParams& params,
                          const GatherShape& shape) {
  if constexpr (std::is_same_v<T, float>) {
    switch (shape.config) {
      case 0:
        return launch_gather_tile<T, GatherTile<8, 4, 2, 4>>(site, params, shape);
      case 1:
        return launch_gather_tile<T, GatherTile<8, 4, 4, 2>>(site, params, shape);
      case 4:
        return launch_gather_tile<T, GatherTile<8, 2, 1, 4>>(site, params, shape);
    }
  }
  switch (shape.config) {
    case 2:
      return launch_gather_tile<T, GatherTile<8, 4, 2, 2>>(site, params, shape);
    case 3:
      return launch_gather_tile<T, GatherTile<8, 4, 1, 4>>(site, params, shape);
    case 5:
      return launch_gather_tile<T, GatherTile<4, 1, 1, 4>>(site, params, shape);
    case 6:
      return launch_gather_tile<T, GatherTile<1, 1, 1, 4>>(site, params, shape);
  }
  throw_launch_error(site, "launching the gather kernel", "no such tile");
}

template <typename T>
void pack_weights(const LaunchSite& site, const GatherParams& params, const GatherShape& shape,
                  const Buffers& buffers) {
  using Acc = accumulate_t<T>;
  const int64_t elements = shape.packed_bytes / static_cast<int64_t>(sizeof(Acc));
  const dim3 grid(count_loop_blocks(elements, 256), params.row_phases * params.column_phases);
  launch_kernel<pack_weights_kernel<T>>(
      site, grid, 256, 0, params, static_cast<const T*>(buffers.w),
      static_cast<Acc*>(buffers.workspace), kGatherConfigs[shape.config].filters());
}

template <typename T>
void launch_gather(const LaunchSite& site, const GatherShape& shape, const Buffers& buffers,
                   bool packed) {
  const GatherView view = make_gather_view(*site.problem);
  GatherParams params = make_gather_params(*site.problem, view, shape, buffers, packed);
  const int64_t rows = static_cast<int64_t>(shape.rows_axes.size());
  const int64_t columns = static_cast<int64_t>(shape.columns_axes.size());
  int row_prefix = 0;
  for (int64_t row = 0; row < rows; row += kPhasesPerLaunch) {
    params.row_phases = static_cast<int>(std::min<int64_t>(rows - row, kPhasesPerLaunch));
    for (int i = 0; i < params.row_phases; ++i) {
      params.row[i] = make_row_params(shape.rows_axes[row + i], shape);
      params.row[i].tap_prefix = row_prefix;
      row_prefix += params.row[i].taps;
    }
    int column_prefix = 0;
    for (int64_t column = 0; column < columns; column += kPhasesPerLaunch) {
      params.column_phases =
          static_cast<int>(std::min<int64_t>(columns - column, kPhasesPerLaunch));
      for (int i = 0; i < params.column_phases; ++i) {
        params.column[i] = make_column_params(shape.columns_axes[column + i], shape, view);
        params.column[i].tap_prefix = column_prefix;
        column_prefix += params.column[i].taps;
      }
      if (packed) pack_weights<T>(site, params, shape, buffers);
      launch_gather_phases<T>(site, params, shape);
    }
  }
}

}  // namespace convx
