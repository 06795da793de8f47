// Kernel parameters of cuda_boxes.
#pragma once

#include "core/buffers.h"
#include "device/fast_divmod.cuh"
#include "engines/cuda_boxes/boxes_pad.h"
#include "engines/cuda_boxes/boxes_shape.h"
#include "engines/tensor_params.h"

namespace convx {

struct BoxesParams : TensorParams {
  int tiles;  // number of work items: tiles times split-K slices, slices varying fastest
  FastDivmod by_parts;
  int parts, part_chunks;
  float* sums;  // [work item][piece][thread's accumulators / 4][thread][4]
  FastDivmod by_filter_tiles, by_column_tiles, by_row_tiles;
  FastDivmod by_tile_kinds;  // see BoxesShape::tile_kinds
  int* taken;  // [kind]: tiles taken so far; null: blocks take tiles with a fixed stride
  FastDivmod by_box_columns, by_box_rows;  // index of a tile's pixel to column and row
  int box_columns, box_rows, box_images;
  int plane, lines;  // NCHW: pixels of a plane, and lines of all images
  FastDivmod by_plane_lines;
  int chunks, stages, stage_bytes;
  int pixel_bytes;  // bytes of a stage's pixels, and of each epilogue buffer
  int resident;     // filters are loaded once per block
  int filters_offset, ring_offset;
  int packed_channels;
  int pack_filters, pack_taps;  // filters and taps that a block packs at once
  FastDivmod by_pack_filters, by_pack_taps, by_tap_columns;
  // True where the tensor starts at a multiple of 16 bytes and has TMA boxes or bulk copies.
  // Otherwise threads move its values in smaller pieces.
  int boxed_source, boxed_target;
  int dense_target;  // the target is stored in 16-byte units
  int row_piece;     // BoxesShape::row_piece, or less if the target's address requires it
  FastDivmod by_group_targets;
  int filters_in_place;
};

// A shape, and the parameters that do not depend on the call's buffers.
struct BoxesFit {
  BoxesShape shape;
  BoxesParams params;
};

BoxesFit make_boxes_fit(const ConvProblem& problem, BoxesShape shape);

BoxesParams make_boxes_params(const ConvProblem& problem, const BoxesFit& fit,
                              const Buffers& buffers);

// All phases of a problem. The problem is the caller's, possibly with a padded copy of the source,
// or with all pixels in one row.
struct BoxesPlan {
  ConvProblem problem;
  std::vector<BoxesFit> phases;
  CopiedPixels padding;
  int64_t padding_offset = 0;  // byte offset of the padded source in the workspace
};

}  // namespace convx
