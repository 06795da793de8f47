// What the window kernels are launched with.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_window/window_shape.h"

namespace convx {

struct WindowParams {
  const void* source;
  const void* filters;  // as the caller has them
  const void* packed;   // as the tensor cores read them, see pack_filters.cuh
  const void* bias;     // may be null
  void* target;
  float* partials;  // not null: sums of a part of the reduction go here

  // Distances in elements. Target strides are between neighbours of the phase's lattice.
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t filter_target, filter_source, filter_r, filter_s, filter_group;
  int64_t partial_stride;  // between the parts

  int images, source_height, source_width, target_height, target_width;
  int group_sources, group_targets;  // channels per group
  int tap_rows, tap_columns;
  int tap_r0, tap_r_step, tap_s0, tap_s_step;  // kernel index of tap (i, j)
  int offset_h0, offset_h_step, offset_w0, offset_w_step;
  int source_step_h, source_step_w;

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
  int plane_contiguous;  // rows of a target plane follow each other without a gap
  int lead;              // stages the first warpgroup runs ahead

  FastDivmod by_pitch, by_rows, by_strips, by_segment_length, by_positions;
  FastDivmod by_images;  // positions of an image
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles;
  FastDivmod by_column_windows, by_pairs_per_image, by_pair_rows;

  int tap_positions[kMaxWindowTaps];
  WindowSegment segment[kMaxWindowSegments];
};

}  // namespace convx
