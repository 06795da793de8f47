// What the pixel kernels are launched with.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_pixels/pixel_shape.h"

namespace convx {

struct PixelParams {
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
  int plane, pixels;  // target pixels of an image, of all images
  int group_sources, group_targets;
  int tap_rows, tap_columns;
  int tap_r0, tap_r_step, tap_s0, tap_s_step;  // kernel index of tap (i, j)
  int offset_h0, offset_h_step, offset_w0, offset_w_step;
  int source_step_h, source_step_w;

  int window_step, per_image, tiles, filter_tiles, tile_filters, splits;
  int bands, channels_last;
  int vector;              // positions that are staged together
  int run, copy_elements;  // elements that lie together, and what is copied at a time
  int span, row_pitch, entries, image_rows, segment;
  int position_pitch, channel_pitch;
  int entry_elements;   // from entry to entry, in a stage
  int entry_copies;     // of an entry and a chunk
  int copy_channels;    // from one of them to the next, in channels
  int copy_shared;      // the same, in elements of a stage
  int64_t copy_source;  // and of the source
  int folded, channels, chunk_channels, chunks, steps, stage_steps;
  int source_stages, filter_stages, resident;
  int source_stage_bytes, filter_stage_bytes, step_bytes;
  int staging_offset, source_offset, filter_offset;
  int plane_contiguous;  // rows of a target plane follow each other without a gap

  FastDivmod by_target_width, by_target_height, by_plane;
  FastDivmod by_row_pitch, by_image_rows, by_segment;
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles, by_image_tiles;
};

}  // namespace convx
