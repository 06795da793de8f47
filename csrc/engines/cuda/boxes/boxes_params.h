// Kernel parameters of cuda_boxes.
#pragma once

#include "core/arithmetic.h"
#include "core/plan.h"
#include "engines/cuda/boxes/boxes_shape.h"
#include "kernels/pack_filters.h"
#include "kernels/pixel_copies.h"
#include "planning/tensor_params.h"

namespace convx {

// What differs between the phases of a launch.
struct BoxPhaseParams {
  int first_tile;  // of all pixel tiles, those of earlier phases; INT_MAX if there is no such phase
  int first_tap;   // taps of earlier phases, for resident filters
  int taps;        // if 0, the tiles are zeros
  FastDivmod by_column_tiles, by_row_tiles;
  int tap_rows, tap_columns;
  int tap_r0, tap_r_step, tap_s0, tap_s_step;  // kernel index of tap (i, j)
  int offset_h0, offset_h_step, offset_w0, offset_w_step;
  void* target;
  int target_height, target_width;
};

// The fields of TensorParams that belong to a phase are those of the first one.
struct BoxesParams : TensorParams {
  BoxPhaseParams phases[kMaxBoxPhases];
  // Number of work items: whole_tiles tiles, then the split-K slices of the others, slices varying
  // fastest.
  int tiles;
  int whole_tiles;
  FastDivmod by_parts;
  int parts, part_steps;
  float* sums;  // [slice][piece][thread's accumulators / 4][thread][4]
  int tile_filters;
  FastDivmod by_filter_tiles;
  FastDivmod by_tile_kinds;  // see BoxesShape::tile_kinds
  int* taken;  // [kind]: tiles taken so far; null: blocks take tiles with a fixed stride
  FastDivmod by_box_columns, by_box_rows;  // index of a tile's pixel to column and row
  int box_columns, box_rows, box_images;
  int tile_boxes;    // BoxesShape::tile_boxes
  int is_staggered;  // warpgroup 1 follows warpgroup 0 by kBoxLead stages
  // If set, the target's pixels are one row of one image (BoxesShape::flat_pitch). The source keeps
  // its images, and a pixel's index in that row is divided to find its column, row and image.
  int tiles_are_flat;
  int source_images;
  FastDivmod by_target_columns, by_target_rows;
  int plane, lines;  // NCHW: pixels of a plane, and lines of all images
  FastDivmod by_plane_lines;
  int chunks, stages, stage_bytes;
  FastDivmod by_chunks;
  int pixel_bytes, staging_bytes;  // bytes of a stage's pixels, and of each epilogue buffer
  int resident;                    // filters are loaded once per block
  int filters_offset, ring_offset;
  int kernel_rows, kernel_columns;  // R and S
  int packed_channels;
  // True where the tensor starts at a multiple of 16 bytes and has TMA boxes or bulk copies.
  // Otherwise threads move its values in smaller pieces.
  int boxed_source, boxed_target;
  int dense_target;  // the target is stored in 16-byte units
  int row_piece;     // BoxesShape::row_piece, or less if the target's address requires it
  FastDivmod by_group_targets;
  BoxFilters filter_order;
};

// A shape, and the parameters that do not depend on the call's buffers.
struct BoxesFit {
  BoxesShape shape;
  BoxesParams params;
  FilterPack pack;  // if filters are packed; the first launch packs them for all
};

BoxesFit make_boxes_fit(const ConvProblem& problem, BoxesShape shape);

BoxesParams make_boxes_params(const ConvProblem& problem, const BoxesFit& fit,
                              const Buffers& buffers);

// TMA cannot read channels_last sources whose pixels do not start at multiples of 16 bytes. They
// are copied first, with padding: [image][row][column][padded pixel]. Returns a copy with count 0
// if the problem needs no padding, or if padding would not help.
CopiedPixels find_source_padding(const ConvProblem& problem);

// The problem with the source strides of the padded copy.
ConvProblem with_padded_source(const ConvProblem& problem, const CopiedPixels& padding);

double predict_padding(const CopiedPixels& padding);  // microseconds

// Tensors whose channels are apart (NCHW), and for which channels_last copies stand in.
struct PlaneCopies {
  PlaneCopy source, target;

  int64_t bytes() const { return source.bytes() + target.bytes(); }  // of the copies
};
PlaneCopies find_plane_copies(const ConvProblem& problem);

// The problem with the strides of the copies.
ConvProblem with_plane_copies(const ConvProblem& problem, const PlaneCopies& copies);

double predict_plane_copies(const PlaneCopies& copies);  // microseconds

inline constexpr int64_t kPaddingAlignment = 256;  // alignment of copies in the workspace

// All launches of a problem. The problem is the caller's, possibly with copies of tensors, with
// fewer images, or with all pixels in one row.
struct BoxesPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaBoxes};

  ConvProblem problem;
  std::vector<BoxesFit> launches;
  CopiedPixels padding;
  int64_t padding_offset = 0;  // byte offset of the padded source in the workspace
  // With these, all launches are repeated for each batch of problem.N images.
  PlaneCopies planes;
  int64_t batches = 1;
  int64_t source_offset = 0, target_offset = 0;  // byte offsets of the copies

  void describe(Text& out) const;
};

}  // namespace convx
