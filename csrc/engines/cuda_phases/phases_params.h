// Kernel parameters of cuda_phases. Plain data. Strides are in elements.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "device/fast_divmod.cuh"

namespace convx {

inline constexpr int kPhasesThreads = 256;

// The place of a target position among the phases of its axis (phases_shape.h).
struct PhasePlace {
  int pad, frame, kept;
  FastDivmod by_step;  // the stride
};

// Along an axis, inner tap t of phase k has the kernel index
//     r = first + (k + shift) mod stride - t * stride ,
// or weight 0 if the kernel has no such index.
struct PackAxis {
  int kernel, first, shift;
  FastDivmod by_step;  // the stride
};

// The weights of the inner convolution, [filter][tap][source channel]. Within a group its filters
// are ordered as [phase][channel] or as [channel][phase], where a phase is that of the row and that
// of the column.
inline constexpr int kPackTile = 32;  // filters, and source channels, that a block transposes
struct PackParams {
  const void* filters;
  void* packed;
  Strides filter_strides;
  int* cleared;           // if set, an int that becomes 0
  bool phase_is_slowest;  // true: [phase][channel], false: [channel][phase]
  int blocks;
  int group_filters, group_sources;
  int tap_rows, tap_columns;
  FastDivmod by_source_tiles, by_filter_tiles, by_tap_columns, by_tap_rows;
  FastDivmod by_channels, by_row_phases, by_column_phases;  // within a group
  PackAxis rows, columns;
};

// Sets *flag if the source, channels_last, has an infinity or a NaN.
struct ScanParams {
  const void* source;
  int* flag;
  Strides source_strides;
  int unit, image_units, units;  // as in InterleaveParams
  FastDivmod by_units, by_columns, by_rows;
};

struct InterleaveParams {
  const int* flag;  // kRows: nothing is recomputed if *flag is 0
  const void* results;
  void* target;
  const void* source;  // y and w, for results that are recomputed
  const void* filters;
  int64_t result_n, result_group, result_c, result_h, result_w;
  int64_t result_row_phase, result_column_phase;
  Strides target_strides, source_strides, filter_strides;
  PhasePlace rows, columns;
  bool has_pixels;  // a unit is channels of one pixel; otherwise it is columns of one row
  bool recomputes;  // results that are NaN are recomputed by the definition
  int unit;         // elements that a thread stores at once
  int image_units;  // units of one image
  int units;        // units of all images of the launch
  int group_channels, group_filters;
  int kernel_rows, kernel_columns, dilation_h, dilation_w, source_height, source_width;
  FastDivmod by_units, by_columns, by_rows, by_channels, by_group_channels;
};

}  // namespace convx
