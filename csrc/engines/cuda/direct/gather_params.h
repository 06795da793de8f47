// Parameters of the gather kernel. Plain data: filled on the host, read from constant memory.
#pragma once

#include <cstdint>

#include "core/fast_divmod.h"

namespace convx {

constexpr int kStrip = 8;  // neighbouring pixels of a thread

// Phases of one axis that one launch covers. An axis with more is launched in slices.
constexpr int kPhasesPerLaunch = 8;

// One phase of one axis: GatherAxis in 32 bits, and the layout of its values in shared memory.
struct AxisParams {
  int count, target_start, target_step;
  int source_step, taps, tap0, tap_step, offset0, offset_step;
  int lanes, classes, period;
  int staged_classes;  // classes of one chunk of taps
  int staged_length;   // rows or columns stored per class
  int tap_prefix;      // taps of the phases before this one
  // Columns only: separately stored strips (1: all strips of a row share one run of columns), and
  // the elements between windows of neighbouring classes, between strips and between rows.
  int staged_strips;
  int class_pitch, strip_pitch, row_pitch;
  bool runs;  // columns only: runs are long, so a warp copies whole rows
  FastDivmod by_staged_classes, by_staged_length, by_staged_strips, by_lanes;
};

struct ElementStrides {
  int64_t n, c, h, w;
};

struct GatherParams {
  const void* source;
  // If packed, per phase [group][filter tile][c][row tap][column tap][filter of tile] in the
  // accumulation type. Otherwise w itself.
  const void* weight;
  const void* bias;  // may be null
  void* target;
  ElementStrides source_strides, target_strides;
  // Strides of w along groups, target channels, source channels, r and s.
  int64_t weight_group_stride, weight_target_stride, weight_source_stride;
  int64_t weight_r_stride, weight_s_stride;
  int images, first_image;
  int source_h, source_w;
  int source_channels, target_channels;  // per group
  int groups;
  int all_column_taps;                       // taps of all column phases
  int strips, rows, tile_images;             // extents of a pixel tile
  int channels, row_taps, column_taps;       // extents of a chunk of the reduction
  int filter_tiles, strip_tiles, row_tiles;  // blocks along each axis
  int row_phases, column_phases;
  int stage_elements;  // elements of one of the two stages: source tile, then weights
  int weight_offset;   // start of the weights in a stage
  int table_offset;    // bytes of shared memory before the table of positions
  int turn_offset;     // bytes before the buffer of the epilogue's transpose
  int chain_limit;     // terms of an accumulation chain
  bool packed;
  bool channel_fastest;  // the source is channels_last, so neighbouring threads copy channels
  FastDivmod by_strips, by_rows;
  AxisParams row[kPhasesPerLaunch];
  AxisParams column[kPhasesPerLaunch];
};

}  // namespace convx
