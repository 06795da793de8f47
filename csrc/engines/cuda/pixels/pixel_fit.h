// What the plans of cuda_pixels and cuda_mma hold, and the kernel parameters made from it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffers.h"
#include "core/fast_divmod.h"
#include "engines/cuda/pixels/pixel_shape.h"
#include "planning/half_plan.h"
#include "planning/tensor_params.h"

namespace convx {

struct PixelParams : TensorParams {
  int plane, pixels;  // target pixels of one image, and of all images
  int window_step, per_image, tiles, filter_tiles, tile_filters, splits;
  int bands, channels_last;
  int vector;              // positions per entry of the source table
  int run, copy_elements;  // contiguous elements of an entry, and elements per copy
  int span, row_pitch, entries, image_rows, segment;
  int position_pitch, channel_pitch;
  int entry_elements;   // elements from one entry to the next, in a stage
  int entry_copies;     // copies per entry and chunk
  int copy_channels;    // channels from one copy to the next
  int copy_shared;      // elements from one copy to the next, in a stage
  int64_t copy_source;  // elements from one copy to the next, in the source
  int folded, channels, chunk_channels, chunks, steps, stage_steps;
  int source_stages, filter_stages, resident;
  int source_stage_bytes, filter_stage_bytes, step_bytes;
  int staging_offset, source_offset, filter_offset;

  FastDivmod by_target_width, by_target_height, by_plane;
  FastDivmod by_row_pitch, by_image_rows, by_segment;
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles, by_image_tiles;

  int stage_chunks;

  int paired, row_pairs;
  int pair_lead;          // 1: a kernel row's first pair begins one column before it
  int64_t partial_image;  // elements from image to image of a split-K slice
};

// A shape, and the parameters that do not depend on the call's buffers.
struct PixelFit {
  PixelShape shape;
  PixelParams params;
};

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape);

// The parameters of a call. offset: start of this launch's part of the workspace.
PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                              int64_t offset = 0);

// The phases of a gather (core/gather_view.h), which run one after the other in the same workspace.
using PixelsPlan = PhasedPlan<PixelFit>;
using MmaPlan = std::vector<PixelFit>;

}  // namespace convx
