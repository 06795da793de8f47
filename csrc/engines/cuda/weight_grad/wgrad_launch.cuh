// Launches the kernels of one operand form: packing, MMAs and the reduction, round by round.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "cuda/tensor_map.h"
#include "engines/cuda/weight_grad/measure_scales.cuh"
#include "engines/cuda/weight_grad/pack_positions.cuh"
#include "engines/cuda/weight_grad/row_boxes_launch.cuh"
#include "engines/cuda/weight_grad/rows_kernel.cuh"
#include "engines/cuda/weight_grad/wgrad_forms.h"
#include "engines/cuda/weight_grad/wgrad_kernel.cuh"
#include "engines/cuda/weight_grad/wgrad_reduce.cuh"

namespace convx {

// has_pairs: see WgradGeometry.
template <typename T>
OperandAccess find_access(const void* tensor, const Strides& strides, int channels,
                          bool has_pairs) {
  const auto address = reinterpret_cast<uintptr_t>(tensor);
  const auto are_multiples = [&](int64_t unit) {
    return address % (unit * sizeof(T)) == 0 && strides.n % unit == 0 && strides.h % unit == 0;
  };
  OperandAccess access{};
  access.channels_adjacent = strides.c == 1 && strides.w != 1;
  if (access.channels_adjacent) {
    constexpr int64_t kUnit = 16 / sizeof(T);
    access.is_vector =
        are_multiples(kUnit) && strides.w % kUnit == 0 && channels % kUnitChannels == 0;
  } else {
    access.is_vector = has_pairs && are_multiples(2) && strides.c % 2 == 0;
  }
  return access;
}

// Packs the operands of a round that are not read in place.
template <OperandForm kForm>
void pack_positions(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  const int64_t bytes = g.input_bytes(1) + g.gradient_bytes(1);
  if (bytes == 0) return;
  const int64_t blocks = std::min<int64_t>(bytes / kPackedBlockBytes, kPackBlocks);
  launch_early<pack_positions_kernel<element_t<kForm>, kForm>>(
      site, dim3(static_cast<unsigned>(blocks)), kPackThreads,
      1024 + count_components(kForm) * kPackedBlockBytes, g, call);
}

inline WgradMaps make_wgrad_maps(const LaunchSite& site, const WgradGeometry& g,
                                 const WgradCall& call) {
  WgradMaps maps{};
  const BoxValue value = g.converts() ? BoxValue::kFourBytes : BoxValue::kTwoBytes;
  const auto bytes = [&](const Strides& s) {
    const int64_t element = value_bytes(value);
    return std::array{element * s.w, element * s.h, element * s.n};
  };
  if (g.input_source != OperandSource::kPacked) {
    const auto [w, h, n] = bytes(g.x_strides);
    maps.input =
        make_tensor_map(site, PixelTensor{.base = call.x,
                                          .extent = {g.channels, g.width, g.height, g.images},
                                          .stride_bytes = {w, h, n},
                                          .first = {-g.packed_left, -g.pad_top},
                                          .count = {g.pitch, g.rows},
                                          .step = {g.stride_w, g.stride_h},
                                          .channels = g.atom_channels,
                                          .pixels = kStagePositions,
                                          .value = value});
  }
  if (g.gradient_source != OperandSource::kPacked) {
    const auto [w, h, n] = bytes(g.y_strides);
    maps.gradient = make_tensor_map(
        site, PixelTensor{.base = call.y,
                          .extent = {g.filters, g.out_width, g.out_height, g.images},
                          .stride_bytes = {w, h, n},
                          .first = {0, 0},
                          .count = {g.pitch, g.rows},
                          .step = {1, 1},
                          .channels = kTileFilters,
                          .pixels = kStagePositions,
                          .value = value});
  }
  return maps;
}

template <OperandForm kForm, int kColumns>
void launch_mmas(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call,
                 const WgradMaps& maps) {
  const dim3 grid(static_cast<unsigned>(g.tiles() * g.slices));
  const auto launch = [&]<bool kConverts>() {
    constexpr int kOthers = kConverts ? kConvertingThreads : kProducerThreads;
    launch_clusters<wgrad_kernel<kForm, kColumns, kConverts>>(
        site, grid, g.writes_result ? g.slices : 1, 128 * g.consumers() + kOthers,
        static_cast<size_t>(g.shared_bytes), g, call, maps);
  };
  if constexpr (can_convert(kForm)) {
    if (g.converts()) return launch.template operator()<true>();
  }
  launch.template operator()<false>();
}

// Calls the kernel for the geometry's number of columns.
template <OperandForm kForm>
void multiply_positions(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call,
                        const WgradMaps& maps) {
  if constexpr (!promotes_sums(kForm)) {
    if (g.columns == 256) return launch_mmas<kForm, 256>(site, g, call, maps);
    if (g.columns == 224) return launch_mmas<kForm, 224>(site, g, call, maps);
    if (g.columns == 192) return launch_mmas<kForm, 192>(site, g, call, maps);
    if (g.columns == 160) return launch_mmas<kForm, 160>(site, g, call, maps);
  }
  if (g.columns == 128) return launch_mmas<kForm, 128>(site, g, call, maps);
  if (g.columns == 96) return launch_mmas<kForm, 96>(site, g, call, maps);
  if (g.columns == 64) return launch_mmas<kForm, 64>(site, g, call, maps);
  throw_launch_error(site, "choosing a kernel", "no such number of columns");
}

// Calls the row kernel that is compiled for the geometry's tile.
template <OperandForm kForm>
void multiply_rows(const LaunchSite& site, WgradGeometry g, const WgradCall& call) {
  using T = element_t<kForm>;
  const auto find_unit = [](const void* tensor, const Strides& strides) {
    return find_copy_unit(reinterpret_cast<intptr_t>(tensor), strides, sizeof(T));
  };
  g.row_tiles.gradient_unit = find_unit(call.y, g.y_strides);
  g.row_tiles.input_unit = find_unit(call.x, g.x_strides);
  const int unit_pixels = g.row_tiles.input_unit / static_cast<int>(sizeof(T));
  g.row_tiles.input_shift = (unit_pixels - g.pad_left % unit_pixels) % unit_pixels;
  const int threads = 128 * g.row_warpgroups() + kRowProducerThreads;
  const dim3 grid(static_cast<unsigned>(g.slice_blocks() * g.slices));
  const RowTile tile{g.columns, g.row_tiles.warpgroup_groups};
  launch_listed<row_tiles_of<kForm>()>(site, tile, [&]<RowTile kTile>() {
    launch_early<rows_kernel<T, component_t<kForm>, kForm, kTile.columns, kTile.groups>>(
        site, grid, threads, static_cast<size_t>(g.shared_bytes), g, call);
  });
}

template <OperandForm kForm>
void run_wgrad(const LaunchSite& site, const WgradGeometry& g, WgradCall call) {
  using T = element_t<kForm>;
  if constexpr (is_scaled(kForm)) {
    launch_early<measure_scales_kernel<WgradGeometry>>(
        site, dim3(2), kMeasureThreads, kMeasureThreads / 32 * sizeof(Measure), g, call);
  }
  if (g.input_source == OperandSource::kRows) {
    if constexpr (has_row_kernel(kForm)) {
      set_stages(g, call, 0);
      multiply_rows<kForm>(site, g, call);
      return launch_wgrad_reduce<kForm>(site, g, call);
    }
  }
  if (g.input_source == OperandSource::kRowBoxes) {
    if constexpr (has_row_boxes(kForm)) return run_row_boxes<kForm>(site, g, call);
  }
  call.input_access = find_access<T>(call.x, g.x_strides, g.packed_channels, g.input_has_pairs);
  call.gradient_access = find_access<T>(call.y, g.y_strides, g.filters, g.gradient_has_pairs);
  const WgradMaps maps = make_wgrad_maps(site, g, call);
  for (int64_t first = 0; first < g.stages_total; first += g.round_stages) {
    set_stages(g, call, first);
    pack_positions<kForm>(site, g, call);
    multiply_positions<kForm>(site, g, call, maps);
  }
  if (!g.writes_result) launch_wgrad_reduce<kForm>(site, g, call);
}

}  // namespace convx
