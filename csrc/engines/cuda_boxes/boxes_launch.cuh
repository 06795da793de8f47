#pragma once

#include "cuda/launch.h"
#include "cuda/tensor_map.h"
#include "engines/cuda_boxes/boxes_kernel.cuh"
#include "engines/cuda_boxes/boxes_pack.cuh"
#include "engines/cuda_boxes/boxes_passes.h"

namespace convx {

// Channels are counted in words of 16 bits.
template <TensorMath kMath>
BoxesMaps map_tensors(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& p) {
  constexpr int64_t kBytes = operand_bytes(kMath);
  constexpr int64_t kWords = kBytes / 2;
  // Of an axis with one element the stride says nothing, but must be something.
  const auto stride = [](int64_t elements, int64_t extent) {
    return extent > 1 ? kBytes * elements : int64_t{16};
  };
  BoxesMaps maps{};
  if (p.boxed_source) {
    maps.source = make_tensor_map(
        site, {.base = p.source,
               .extent = {kWords * p.group_sources, p.source_width, p.source_height, p.images},
               .stride_bytes = {stride(p.source_w, p.source_width),
                                stride(p.source_h, p.source_height), stride(p.source_n, p.images)},
               .box = {kBoxWords, p.box_columns, p.box_rows, p.box_images},
               .step = {1, p.box_columns > 1 ? p.source_step_w : 1,
                        p.box_rows > 1 ? p.source_step_h : 1, 1},
               .swizzle_bytes = kBoxLineBytes});
  }
  const int64_t line = p.packed_channels;
  const auto* const filters = static_cast<const char*>(p.filters) +
                              kBytes * (p.tap_r0 * p.filter_r + p.tap_s0 * p.filter_s);
  const int64_t s = p.filters_in_place ? p.tap_s_step * p.filter_s : line;
  const int64_t r = p.filters_in_place ? p.tap_r_step * p.filter_r : p.tap_columns * line;
  const int64_t k = p.filters_in_place ? p.filter_target : p.tap_rows * p.tap_columns * line;
  maps.filters = make_tensor_map(
      site, {.base = p.filters_in_place ? static_cast<const void*>(filters) : p.packed,
             .extent = {kWords * p.group_sources, p.tap_columns, p.tap_rows, p.group_targets},
             .stride_bytes = {stride(s, p.tap_columns), stride(r, p.tap_rows),
                              stride(k, p.group_targets)},
             .box = {kBoxWords, 1, 1, kBoxFilters},
             .step = {1, 1, 1, 1},
             .swizzle_bytes = kBoxLineBytes});
  if (p.boxed_target) {
    maps.target = make_tensor_map(
        site, {.base = p.target,
               .extent = {kWords * p.group_targets, p.target_width, p.target_height, p.images},
               .stride_bytes = {stride(p.target_w, p.target_width),
                                stride(p.target_h, p.target_height), stride(p.target_n, p.images)},
               .box = {kBoxWords, p.box_columns, p.box_rows, p.box_images},
               .step = {1, 1, 1, 1},
               .swizzle_bytes = kBoxLineBytes});
  }
  return maps;
}

template <TensorMath kMath, int kFilters, int... kOthers>
void multiply_boxes(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& params,
                    const BoxesMaps& maps) {
  if (shape.filters == kFilters) {
    launch_early<boxes_kernel<kMath, kFilters>>(site, dim3(static_cast<unsigned>(shape.grid)),
                                                kBoxThreads, shape.shared_bytes, params, maps);
  } else if constexpr (sizeof...(kOthers) > 0) {
    multiply_boxes<kMath, kOthers...>(site, shape, params, maps);
  } else {
    throw_launch_error(site, "choosing a kernel", "no such tile");
  }
}

template <TensorMath kMath>
void launch_boxes(const LaunchSite& site, const BoxesShape& shape, const BoxesParams& params) {
  if (!params.filters_in_place) pack_boxes<kMath>(site, params);
  multiply_boxes<kMath, 256, 128, 64>(site, shape, params, map_tensors<kMath>(site, shape, params));
}

}  // namespace convx
