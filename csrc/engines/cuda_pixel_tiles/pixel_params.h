// What the pixel kernels are launched with.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_pixel_tiles/pixel_shape.h"
#include "engines/tensor_params.h"

namespace convx {

struct PixelParams : TensorParams {
  int plane, pixels;  // target pixels of an image, of all images
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

  FastDivmod by_target_width, by_target_height, by_plane;
  FastDivmod by_row_pitch, by_image_rows, by_segment;
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles, by_image_tiles;

  int stage_chunks;

  int paired, row_pairs;
  int pair_lead;          // 1: a kernel row's first pair begins a column before it
  int64_t partial_image;  // from image to image of a part
};

}  // namespace convx
