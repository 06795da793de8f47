#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "cuda/tensor_map.h"
#include "engines/cuda/boxes/boxes_kernel.cuh"

namespace convx {

// The stride of an axis with one element has no meaning, but a tensor map requires a valid one.
inline int64_t box_stride(int64_t bytes, int64_t extent) { return extent > 1 ? bytes : 16; }

// The source or the target. Strides are in elements; steps are the distances between a box's
// pixels.
struct BoxSide {
  const void* base;
  int channels, width, height;
  int64_t n, c, h, w;
  int step_h, step_w;
};

// The tensor map rounds float32 to TF32 as it reads, because wgmma would truncate. Stores keep
// float32.
constexpr BoxValue read_value(TensorMath math) {
  return math == TensorMath::kTf32 ? BoxValue::kTf32 : BoxValue::kTwoBytes;
}
constexpr BoxValue stored_value(TensorMath math) {
  return math == TensorMath::kTf32 ? BoxValue::kFourBytes : BoxValue::kTwoBytes;
}

template <TensorMath kMath>
BoxedTensor describe_side(const BoxesShape& shape, const BoxesParams& p, const BoxSide& side,
                          BoxValue value) {
  constexpr int64_t kBytes = operand_bytes(kMath);
  BoxedTensor tensor{.base = side.base, .swizzle_bytes = kBoxLineBytes, .value = value};
  const auto set_axis = [&](int axis, int64_t extent, int64_t stride, int box, int step) {
    tensor.extent[axis] = extent;
    tensor.stride_bytes[axis - 1] = box_stride(kBytes * stride, extent);
    tensor.box[axis] = box;
    tensor.step[axis] = box > 1 ? step : 1;
  };
  tensor.box[0] = box_chunk(kMath), tensor.step[0] = 1;
  if (shape.form == BoxForm::kLines) {
    tensor.extent[0] = p.plane;
    set_axis(1, side.channels, side.c, box_chunk(kMath), 1);
    set_axis(2, p.images, side.n, 1, 1);
    set_axis(3, 1, 0, 1, 1);
  } else {
    tensor.extent[0] = side.channels;
    set_axis(1, side.width, side.w, p.box_columns, side.step_w);
    set_axis(2, side.height, side.h, p.box_rows, side.step_h);
    set_axis(3, p.images, side.n, p.box_images, 1);
  }
  return tensor;
}

// Flat tiles: the source pixels that a tap reads for all pixels of the target.
template <TensorMath kMath>
PixelTensor describe_flat_source(const BoxesShape& shape, const BoxesParams& p) {
  const auto stride = [](int64_t elements, int64_t extent) {
    return box_stride(operand_bytes(kMath) * elements, extent);
  };
  const BoxPhase& phase = shape.phases[0];
  const auto count = [](const GatherAxis& axis) { return static_cast<int>(axis.count); };
  return {.base = p.source,
          .extent = {p.group_sources, p.source_width, p.source_height, p.source_images},
          .stride_bytes = {stride(p.source_w, p.source_width), stride(p.source_h, p.source_height),
                           stride(p.source_n, p.source_images)},
          .first = {p.offset_w0, p.offset_h0},
          .count = {count(phase.columns), count(phase.rows)},
          .step = {p.source_step_w, p.source_step_h},
          .channels = box_chunk(kMath),
          .pixels = p.box_columns,
          .value = read_value(kMath)};
}

// All taps of the filters: [filter][row][column][channel], or [channel][row][column][filter] for
// BoxFilters::kColumns.
template <TensorMath kMath>
BoxedTensor describe_filters(const BoxesParams& p) {
  const bool packed = p.filter_order == BoxFilters::kPacked;
  const bool columns = p.filter_order == BoxFilters::kColumns;
  const int64_t line = p.packed_channels;
  const int64_t s = packed ? line : p.filter_s;
  const int64_t r = packed ? p.kernel_columns * line : p.filter_r;
  const int64_t outer = packed    ? p.kernel_rows * p.kernel_columns * line
                        : columns ? p.filter_source
                                  : p.filter_target;
  const int outer_extent = columns ? p.group_sources : p.group_targets;
  const auto stride = [](int64_t elements, int64_t extent) {
    return box_stride(operand_bytes(kMath) * elements, extent);
  };
  return {.base = packed ? p.packed : p.filters,
          .extent = {columns ? p.group_targets : p.group_sources, p.kernel_columns, p.kernel_rows,
                     outer_extent},
          .stride_bytes = {stride(s, p.kernel_columns), stride(r, p.kernel_rows),
                           stride(outer, outer_extent)},
          .box = {box_chunk(kMath), 1, 1, kBoxFilters},
          .step = {1, 1, 1, 1},
          .swizzle_bytes = kBoxLineBytes,
          .value = read_value(kMath)};
}

template <TensorMath kMath>
BoxesMaps map_tensors(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& p) {
  BoxesMaps maps{};
  const BoxSide source{p.source,        p.group_sources, p.source_width, p.source_height,
                       p.source_n,      p.source_c,      p.source_h,     p.source_w,
                       p.source_step_h, p.source_step_w};
  const bool mapped = has_maps(shape.form);
  if (mapped && p.boxed_source) {
    maps.source =
        p.tiles_are_flat
            ? make_tensor_map(site, describe_flat_source<kMath>(shape, p))
            : make_tensor_map(site, describe_side<kMath>(shape, p, source, read_value(kMath)));
  }
  for (size_t i = 0; mapped && p.boxed_target && i < shape.phases.size(); ++i) {
    const BoxPhaseParams& phase = p.phases[i];
    const BoxSide target{phase.target,
                         p.group_targets,
                         phase.target_width,
                         phase.target_height,
                         p.target_n,
                         p.target_c,
                         p.target_h,
                         p.target_w,
                         1,
                         1};
    maps.target[i] =
        make_tensor_map(site, describe_side<kMath>(shape, p, target, stored_value(kMath)));
  }
  maps.filters = make_tensor_map(site, describe_filters<kMath>(p));
  return maps;
}

// Launches the kernel of the shape's tile and, if reductions were split, the one that adds slices.
template <TensorMath kMath, BoxForm kForm>
void multiply_boxes(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& params) {
  const BoxesMaps maps = map_tensors<kMath>(site, shape, params);
  const BoxTileSize size{shape.pieces, shape.filters};
  launch_listed<box_tiles<kMath, kForm>()>(site, size, [&]<BoxTileSize kTile>() {
    constexpr int kPieces = kTile.pieces, kFilters = kTile.filters;
    const Grid grid(shape.grid);
    const auto launch = [&]<bool kColumns>() {
      launch_early<boxes_kernel<kMath, kFilters, kForm, kPieces, kColumns>>(
          site, grid, kBoxThreads, shape.shared_bytes, params, maps);
    };
    if constexpr (takes_filter_columns(kMath)) {
      if (params.filter_order == BoxFilters::kColumns) {
        launch.template operator()<true>();
      } else {
        launch.template operator()<false>();
      }
    } else {
      launch.template operator()<false>();
    }
    if constexpr (kFilters <= most_split_filters(kForm)) {
      if (shape.parts == 1) return;
      const Grid slices(shape.split_tiles(), kFilters / box_chunk(kMath));
      launch_early<add_slices_kernel<kMath, kForm, kPieces>>(
          site, slices, kBoxMultipliers, kBoxAlignment + shape.filters_offset, params, maps);
    }
  });
}

template <TensorMath kMath>
void launch_boxes(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& params) {
  visit_box_form<kMath>(
      shape.form, [&]<BoxForm kForm>() { multiply_boxes<kMath, kForm>(site, shape, params); });
}

}  // namespace convx
