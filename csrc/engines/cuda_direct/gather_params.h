// What the gather kernel is told. Plain data: filled on the host, read from constant memory.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"

namespace convx {

constexpr int kStrip = 8;  // neighbouring pixels one thread computes

// Phases of one axis that one launch covers; an axis with more is launched in slices.
constexpr int kPhasesPerLaunch = 8;

// One phase of one axis: GatherAxis in 32 bits, and how its source values lie in shared memory.
struct AxisParams {
  int count, target_start, target_step;
  int source_step, taps, tap0, tap_step, offset0, offset_step;
  int lanes, classes, period;
  int staged_classes;  // classes of one chunk of taps
  int staged_length;   // rows, or columns, stored per class
  int tap_prefix;      // taps of the phases before this one
  // Columns only: strips stored apart (1: all strips of a row are one run of columns), and the
  // elements from one class's window, strip and row to the next.
  int staged_strips;
  int class_pitch, strip_pitch, row_pitch;
  bool runs;  // columns only: runs are long enough for a warp to copy whole rows
  FastDivmod by_staged_classes, by_staged_length, by_staged_strips, by_lanes;
};

struct ElementStrides {
  int64_t n, c, h, w;
};

struct GatherParams {
  const void* source;
  // Packed: per phase [group][filter tile][c][row tap][column tap][filter of tile] in the
  // accumulation type; else w itself.
  const void* weight;
  const void* bias;  // may be null
  void* target;
  ElementStrides source_strides, target_strides;
  // Of w as it was given, along groups, the target's channels, the source's channels, r and s.
  int64_t weight_group_stride, weight_target_stride, weight_source_stride;
  int64_t weight_r_stride, weight_s_stride;
  int images, first_image;
  int source_h, source_w;
  int source_channels, target_channels;  // per group
  int groups;
  int all_column_taps;                       // of all phases
  int strips, rows, tile_images;             // extents of a pixel tile
  int channels, row_taps, column_taps;       // extents of a chunk of the reduction
  int filter_tiles, strip_tiles, row_tiles;  // blocks along each axis
  int row_phases, column_phases;
  int stage_elements;  // shared memory of one of the two stages: source tile, then weights
  int weight_offset;   // where the weights begin in it
  int table_offset;    // bytes of shared memory before the table of positions
  int turn_offset;     // bytes before the memory in which stores are turned
  int chain_limit;     // products summed before they are added to the target
  bool packed;
  bool channel_fastest;  // the source is channels_last: neighbouring threads take channels
  FastDivmod by_strips, by_rows;
  AxisParams row[kPhasesPerLaunch];
  AxisParams column[kPhasesPerLaunch];
};

}  // namespace convx
