// Kernel parameters of cuda_phases. Plain data. Strides are in elements.
#pragma once

#include <cstdint>

#include "core/fast_divmod.h"
#include "core/problem.h"
#include "kernels/pack_filters.h"

namespace convx {

inline constexpr int kPhasesThreads = 256;
inline constexpr int kPlaneChannels = 4;  // channels that a thread interleaves in NCHW

// Transposition (phases_transpose.cuh): bytes of channels per thread, threads of a warp along the
// channels and along the pixels.
inline constexpr int kTransposeBytes = 16;
inline constexpr int kTransposeChannelLanes = 4, kTransposePixelLanes = 8;

// The place of a target position among the phases of its axis (phases_shape.h).
struct PhasePlace {
  int pad, frame, kept;
  FastDivmod by_step;  // the stride
};

// Sets *flag if the source, channels_last, has an infinity or a NaN.
struct ScanParams {
  const void* source;
  int* flag;
  Strides source_strides;
  int unit, image_units, units;  // as in InterleaveParams
  FastDivmod by_units, by_columns, by_rows;
};

// Planes have contiguous pixels. The channels of a pixel are contiguous and start at a multiple of
// 16 bytes; those behind the last one are written as zeros, and are not read.
struct TransposeParams {
  void* planes;
  void* pixels;
  int64_t planes_n, planes_c;
  int64_t pixels_n;
  int pixels_h, pixels_w;
  // If has_phases is true, a pixel of a plane belongs to a phase and to a lattice point.
  bool has_phases;
  int row_phase, column_phase;  // offsets of a pixel's phases
  PhasePlace rows, columns;
  FastDivmod by_columns;  // of a plane
  int channels, plane;    // plane: pixels of a plane
  int unit;               // elements of a plane that a thread accesses at once
  int image_tiles;        // tiles of one image; a tile is a warp's work
  int tiles;              // tiles of all images of the launch
  FastDivmod by_channel_tiles, by_pixel_tiles;
};

struct InterleaveParams {
  const int* flag;  // kRows: nothing is recomputed if *flag is 0
  const void* results;
  void* target;
  const void* source;  // y and w, for results that are recomputed
  const void* filters;
  int64_t result_n;
  int result_group, result_c, result_h, result_w;
  int result_row_phase, result_column_phase;
  Strides target_strides, source_strides, filter_strides;
  PhasePlace rows, columns;
  bool has_pixels;  // a unit is channels of one pixel; otherwise it is columns of one row
  bool recomputes;  // results that are NaN are recomputed by the definition
  int unit;         // elements that a thread stores at once
  int image_units;  // units of one image; in NCHW, groups of kPlaneChannels units
  int units;        // the same of all images of the launch
  int channels, group_channels, group_filters;
  int kernel_rows, kernel_columns, dilation_h, dilation_w, source_height, source_width;
  FastDivmod by_units, by_columns, by_rows, by_group_channels;
  FastDivmod by_channels;  // NCHW: groups of kPlaneChannels channels
};

}  // namespace convx
