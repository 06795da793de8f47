// Launches the kernels of one operand form: scales, packing, MMAs and the reduction, round by
// round.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "cuda/tensor_map.h"
#include "engines/cuda/weight_grad/pack_positions.cuh"
#include "engines/cuda/weight_grad/row_boxes_kernel.cuh"
#include "engines/cuda/weight_grad/rows_kernel.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"
#include "engines/cuda/weight_grad/wgrad_kernel.cuh"
#include "engines/cuda/weight_grad/wgrad_reduce.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/measure_halves.cuh"

namespace convx {

// Blocks of the packing kernel: eight for each of 132 multiprocessors.
inline constexpr int64_t kPackBlocks = 1056;

// Splits a number of columns into columns, rows and images.
inline StageStep split_step(int64_t columns, int64_t row_columns, int64_t image_rows) {
  const int64_t rows = columns / row_columns;
  return {static_cast<int>(columns % row_columns), static_cast<int>(rows % image_rows),
          static_cast<int>(rows / image_rows)};
}

// Sets which stages the round that begins with this one has.
inline void set_stages(const WgradGeometry& g, WgradCall& call, int64_t first) {
  call.first_stage = first;
  call.stages = std::min(g.round_stages, g.stages_total - first);
  call.slice_stages = static_cast<int>(call.stages / g.slices);
  call.longer_slices = static_cast<int>(call.stages % g.slices);
  call.adds_to_partials = first > 0;
  call.stage_step = g.takes_turns ? g.slices : 1;
  call.step = {};
  if (g.input_source == OperandSource::kRowBoxes) {
    call.step = split_step(call.stage_step, g.row_tiles.segments, g.row_tiles.run_bands);
  } else if (g.input_source != OperandSource::kRows) {
    call.step = split_step(int64_t{call.stage_step} * kStagePositions, g.pitch, g.rows);
  }
}

// Finds the scales of kScaledFp16 and kScaledFp16x2: one power of two for X and one for dY, each by
// a sample of 4,096 values. The packing kernel then checks every value against its scale. Block 0
// samples X, block 1 samples dY.
template <typename Geometry>  // a template, so that every file may have it
__global__ void __launch_bounds__(kMeasureThreads)
    measure_scales_kernel(const __grid_constant__ Geometry g,
                          const __grid_constant__ WgradCall call) {
  wait_for_kernels_before();
  let_next_kernel_start();
  extern __shared__ __align__(16) char memory[];
  const bool is_input = blockIdx.x == 0;
  const SampledTensor tensor{static_cast<const float*>(is_input ? call.x : call.y),
                             g.images,
                             is_input ? g.channels : g.filters,
                             is_input ? g.height : g.out_height,
                             is_input ? g.width : g.out_width,
                             is_input ? g.x_strides : g.y_strides};
  const Measure measure = join_block(sample_tensor(tensor), reinterpret_cast<Measure*>(memory));
  if (threadIdx.x != 0) return;
  const float scale = find_scale(measure.largest, kSourceExponent);
  if (is_input) {
    call.scales->unfit = 0;
    call.scales->source = scale;
  } else {
    filter_scales(call.scales)[0] = scale;
  }
}

// Rows of an NCHW tensor, in boxes of 128 bytes of 64 channels or filters.
template <OperandForm kForm>
TensorMap make_rows_map(const LaunchSite& site, const void* tensor, const Strides& strides,
                        int width, int height, int channels, int images) {
  constexpr int kBytes = sizeof(element_t<kForm>);
  return make_tensor_map(
      site,
      BoxedTensor{.base = tensor,
                  .extent = {width, height, channels, images},
                  .stride_bytes = {strides.h * kBytes, strides.c * kBytes, strides.n * kBytes},
                  .box = {kBoxRowBytes / kBytes, 1, kBoxRows, 1},
                  .step = {1, 1, 1, 1},
                  .swizzle_bytes = kBoxRowBytes,
                  .value = kForm == OperandForm::kTf32 ? BoxValue::kTf32 : BoxValue::kTwoBytes});
}

// Runs the kernel that TMA boxes feed.
template <OperandForm kForm>
void run_row_boxes(const LaunchSite& site, const WgradGeometry& g, WgradCall call) {
  set_stages(g, call, 0);
  WgradMaps maps{};
  maps.input =
      make_rows_map<kForm>(site, call.x, g.x_strides, g.width, g.height, g.channels, g.images);
  maps.gradient = make_rows_map<kForm>(site, call.y, g.y_strides, g.out_width, g.out_height,
                                       g.filters, g.images);
  const Grid grid(g.slice_blocks() * g.slices);
  const int threads = 128 * g.block_filter_tiles * g.row_tiles.channel_sets + 32;
  launch_listed<kBoxColumns>(site, g.columns, [&]<int kColumns>() {
    launch_clusters<row_boxes_kernel<kForm, kColumns>>(site, grid, g.writes_result ? g.slices : 1,
                                                       threads, g.shared_bytes, g, call, maps);
  });
  if (!g.writes_result) launch_wgrad_reduce<kForm>(site, g, call);
}

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
  constexpr OperandForm kPacking = packing_form(kForm);
  launch_early<pack_positions_kernel<element_t<kPacking>, kPacking>>(
      site, blocks, kPackThreads, 1024 + count_components(kForm) * kPackedBlockBytes, g, call);
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

// Calls the kernel for the geometry's number of columns.
template <OperandForm kForm>
void multiply_positions(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call,
                        const WgradMaps& maps) {
  const Grid grid(g.tiles() * g.slices);
  const auto launch = [&]<int kColumns, bool kConverts>() {
    constexpr int kOthers = kConverts ? kConvertingThreads : kProducerThreads;
    launch_clusters<wgrad_kernel<kForm, kColumns, kConverts>>(
        site, grid, g.writes_result ? g.slices : 1, 128 * g.consumers() + kOthers, g.shared_bytes,
        g, call, maps);
  };
  launch_listed<columns_of<kForm>()>(site, g.columns, [&]<int kColumns>() {
    if constexpr (can_convert(kForm)) {
      if (g.converts()) return launch.template operator()<kColumns, true>();
    }
    launch.template operator()<kColumns, false>();
  });
}

// Runs the row kernel that is compiled for the geometry's tile.
template <OperandForm kForm>
void run_rows(const LaunchSite& site, WgradGeometry g, WgradCall call) {
  using T = element_t<kForm>;
  set_stages(g, call, 0);
  const auto find_unit = [](const void* tensor, const Strides& strides) {
    return find_copy_unit(reinterpret_cast<intptr_t>(tensor), strides, sizeof(T));
  };
  g.row_tiles.gradient_unit = find_unit(call.y, g.y_strides);
  g.row_tiles.input_unit = find_unit(call.x, g.x_strides);
  const int unit_pixels = g.row_tiles.input_unit / static_cast<int>(sizeof(T));
  g.row_tiles.input_shift = (unit_pixels - g.pad_left % unit_pixels) % unit_pixels;
  const int threads = 128 * g.row_warpgroups() + kRowProducerThreads;
  const Grid grid(g.slice_blocks() * g.slices);
  const RowTile tile{g.columns, g.row_tiles.warpgroup_groups};
  launch_listed<row_tiles_of<kForm>()>(site, tile, [&]<RowTile kTile>() {
    launch_early<rows_kernel<T, component_t<kForm>, kForm, kTile.columns, kTile.groups>>(
        site, grid, threads, g.shared_bytes, g, call);
  });
  launch_wgrad_reduce<kForm>(site, g, call);
}

template <OperandForm kForm>
void run_wgrad(const LaunchSite& site, const WgradGeometry& g, WgradCall call) {
  using T = element_t<kForm>;
  if constexpr (has_row_boxes(kForm)) {
    if (g.input_source == OperandSource::kRowBoxes) return run_row_boxes<kForm>(site, g, call);
  }
  if constexpr (kForm != OperandForm::kTf32) {
    if constexpr (is_scaled(kForm)) {
      launch_early<measure_scales_kernel<WgradGeometry>>(
          site, 2, kMeasureThreads, kMeasureThreads / 32 * sizeof(Measure), g, call);
    }
    if constexpr (has_row_kernel(kForm)) {
      if (g.input_source == OperandSource::kRows) return run_rows<kForm>(site, g, call);
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
}

}  // namespace convx
