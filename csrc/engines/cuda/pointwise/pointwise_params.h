// Kernel parameters of cuda_pointwise.
#pragma once

#include <cstdint>

#include "core/fast_divmod.h"
#include "engines/cuda/pointwise/pointwise_shape.h"
#include "planning/tensor_params.h"

namespace convx {

struct PointwiseParams : TensorParams {
  int plane, pixels;  // target pixels of one image, and of all images
  int tiles;          // tiles of pixels
  int tile_filters, filter_tiles, all_filter_tiles;
  int channel_rows, filter_part_bytes;
  int chunks, stages, raw_stages;
  int whole_rows, staging_pitch;  // staging_pitch: bytes from one staged row to the next
  int filter_offset, ring_offset, raw_offset;
  int aligned_source, aligned_target, aligned_filters;

  FastDivmod by_plane, by_target_width;
};

}  // namespace convx
