// What the kernels of boxes are launched with.
#pragma once

#include "core/buffers.h"
#include "device/fast_divmod.cuh"
#include "engines/cuda_boxes/boxes_pad.h"
#include "engines/cuda_boxes/boxes_shape.h"
#include "engines/tensor_params.h"

namespace convx {

struct BoxesParams : TensorParams {
  int tiles;  // or parts of them, which follow each other
  FastDivmod by_parts;
  int parts, part_chunks;
  float* sums;  // [part of a tile][piece][4 of a thread's sums][thread][4]
  FastDivmod by_filter_tiles, by_column_tiles, by_row_tiles;
  FastDivmod by_tile_kinds;                // see BoxesShape
  int* taken;                              // of each kind; null: tiles are not counted
  FastDivmod by_box_columns, by_box_rows;  // a tile's pixels
  int box_columns, box_rows, box_images;
  int plane, lines;  // of NCHW: pixels of a plane, lines of all images
  FastDivmod by_plane_lines;
  int chunks, stages, stage_bytes;
  int pixel_bytes;  // of a stage, and of each of the two that sums leave through
  int resident;     // filters
  int filters_offset, ring_offset;
  int packed_channels;
  int pack_filters, pack_taps;  // that are packed together
  FastDivmod by_pack_filters, by_pack_taps, by_tap_columns;
  // Whether tensors start at multiples of 16 bytes; else values are moved in pieces.
  int boxed_source, boxed_target;
  int dense_target;  // units of 16 bytes are
  int row_piece;     // BoxesShape's, or what the target's address allows
  FastDivmod by_group_targets;
  int filters_in_place;
};

// A shape, and all parameters that do not depend on the call.
struct BoxesFit {
  BoxesShape shape;
  BoxesParams params;
};

BoxesFit make_boxes_fit(const ConvProblem& problem, BoxesShape shape);

BoxesParams make_boxes_params(const ConvProblem& problem, const BoxesFit& fit,
                              const Buffers& buffers);

// The phases of a problem: the caller's, or the same of a padded source, or with all pixels in one
// row.
struct BoxesPlan {
  ConvProblem problem;
  std::vector<BoxesFit> phases;
  CopiedPixels padding;
  int64_t padding_offset = 0;  // in the workspace
};

}  // namespace convx
