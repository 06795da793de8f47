// The tensor maps of the tiled weight gradient of depthwise layers (pixel_weight_grad_kernel.cuh).
#pragma once

#include <cstdint>

#include "cuda/tensor_map.h"
#include "engines/cuda/depthwise/depthwise_params.h"

namespace convx {

// The maps of tensors that are copied as boxes; not set otherwise.
inline PixelGradMaps make_pixel_grad_maps(const LaunchSite& site, const PixelWeightGradParams& p,
                                          int64_t element_bytes) {
  PixelGradMaps maps{};
  if (!p.uses_boxes) return maps;
  const DepthwiseTensors& t = p.t;
  const BoxValue value = element_bytes == 2 ? BoxValue::kTwoBytes : BoxValue::kFourBytes;
  maps.source = make_tensor_map(
      site, BoxedTensor{.base = t.source,
                        .extent = {t.channels, t.source_width, t.source_height, t.images},
                        .stride_bytes = {t.source_w * element_bytes, t.source_h * element_bytes,
                                         t.source_n * element_bytes},
                        .box = {p.chunk, p.row_pixels, 1, 1},
                        .step = {1, t.column.period, 1, 1},
                        .swizzle_bytes = 0,
                        .value = value});
  maps.target = make_tensor_map(
      site, BoxedTensor{.base = t.target,
                        .extent = {t.channels, t.column.count, t.row.count, t.images},
                        .stride_bytes = {t.target_w * element_bytes, t.target_h * element_bytes,
                                         t.target_n * element_bytes},
                        .box = {p.chunk, p.tile_columns, 1, 1},
                        .step = {1, t.column.lanes, 1, 1},
                        .swizzle_bytes = 0,
                        .value = value});
  return maps;
}

}  // namespace convx
