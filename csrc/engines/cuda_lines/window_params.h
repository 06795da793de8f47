// What the kernels are launched with.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_lines/window_shape.h"
#include "engines/tensor_params.h"

namespace convx {

struct WindowParams : TensorParams {
  // [group][chunk][plane][line][position][lane_bytes]
  void* lines_memory;
  int64_t line_positions;
  int lines;
  int slabs;          // groups times chunks
  int dense_filters;  // [channel][r][s] of a filter lie together, in this order
  int wide_channels;  // source channels lie together, 16 bytes at a time
  int pitch, rows, strips, strip_columns, row_base, column_base;
  int window_step, second_window, second_offset;
  int pair_rows, column_windows, pairs_per_image;
  int filter_groups, filter_tiles, tiles, splits;
  int segments, segment_length;
  int taps, channels, chunks, chunk_channels, lane_bytes;
  int stage_taps, chain_steps, source_stages, filter_stages, resident;
  int table_offset, staging_offset, source_offset, filter_offset, plane_bytes;
  int lead;       // stages the first warpgroup runs ahead
  int even_runs;  // pixels of an image are runs of pairs, aligned to pairs
  int overlap;    // windows do, and store whole sectors
  int carries;    // blocks that walk do, see Pace
  // Of blocks that walk.
  int walks, tile_step, reach, ring_positions, stretch, raw_offset, raw_stretches;
  int aligned_rows;                              // of the source, to 16 bytes
  int box_columns, box_rows, boxes, whole_rows;  // of tiles read by boxes; these have whole rows
  int cut_sectors;                               // parts of a window do
  int wide_target;                               // target channels lie together, 16 bytes at a time
  int boxed_target;                              // and a window's filters are stored as a box

  FastDivmod by_pitch, by_rows, by_strips;
  FastDivmod by_packed_row, by_tap_columns, by_taps;  // of filters
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles;
  FastDivmod by_column_windows, by_pairs_per_image, by_pair_rows;
  FastDivmod by_box;  // of whole rows

  int tap_positions[kMaxWindowTaps];
  WindowSegment segment[kMaxWindowSegments];
};

}  // namespace convx
