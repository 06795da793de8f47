// What the window kernels are launched with.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_window/window_shape.h"
#include "engines/tensor_params.h"

namespace convx {

struct WindowParams : TensorParams {
  int pitch, rows, strips, strip_columns, row_base, column_base;
  int window_step, second_window, second_offset;
  int pair_rows, column_windows, pairs_per_image;
  int filter_groups, filter_tiles, tiles, splits;
  int segments, segment_length, positions;
  int taps, channels, chunks, chunk_channels, lane_bytes;
  int stage_taps, source_stages, filter_stages, resident;
  int table_offset, staging_offset, source_offset, filter_offset, plane_bytes;
  WindowLoad load;
  // Copies of 16 bytes count elements from the last such unit before the source.
  const void* source_units;
  int source_shift;    // elements from there to the source
  int64_t source_end;  // from there to behind its last element
  int spans, span_images, by_kernel_rows, raw_pitch, raw_channels, raw_stages, raw_offset;
  int row_phase_last, column_phase_first, column_phase_last;
  int lead;  // stages the first warpgroup runs ahead

  FastDivmod by_pitch, by_rows, by_strips, by_segment_length, by_positions;
  FastDivmod by_images;  // positions of an image
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles;
  FastDivmod by_column_windows, by_pairs_per_image, by_pair_rows;

  int tap_positions[kMaxWindowTaps];
  WindowSegment segment[kMaxWindowSegments];
};

}  // namespace convx
