// The compiled tiles of the gather kernel, and their choice for a problem. Plain host code.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_caps.h"
#include "core/problem.h"
#include "planning/gather_axis.h"

namespace convx {

// Template arguments of GatherTile. The launch lists the same tiles in the same order.
struct GatherConfig {
  int per_thread, lane_groups, warps_k, warps_p;
  bool float32_only;  // the other dtypes have fewer tiles, to limit the number of kernels

  int filters() const { return per_thread * lane_groups * warps_k; }
  int strips() const { return 32 / lane_groups * warps_p; }
  int threads() const { return 32 * warps_k * warps_p; }
};

inline constexpr GatherConfig kGatherConfigs[] = {
    {8, 4, 2, 4, true},   // 64 filters x 256 pixels
    {8, 4, 4, 2, true},   // 128 x 128
    {8, 4, 2, 2, false},  // 64 x 128: small grids
    {8, 4, 1, 4, false},  // 32 x 256
    {8, 2, 1, 4, true},   // 16 x 512
    {4, 1, 1, 4, false},  // 4 x 1024: few filters per group
    {1, 1, 1, 4, false},  // 1 x 1024: depthwise
};
inline constexpr int kGatherConfigCount = sizeof(kGatherConfigs) / sizeof(kGatherConfigs[0]);

struct GatherShape {
  int config = -1;
  int64_t strips = 1, rows = 1, images = 1;             // extents of a pixel tile
  int64_t channels = 1, row_taps = 1, column_taps = 1;  // extents of a chunk
  int64_t filter_tiles = 1, strip_tiles = 1, row_tiles = 1, image_tiles = 1;
  int64_t source_elements = 0;  // elements of the source tile in one stage, for the largest phase
  int64_t stage_elements = 0;
  int64_t table_offset = 0;  // bytes before the table of source positions
  int64_t turn_offset = 0;   // bytes before the buffer of the epilogue's transpose
  int64_t chain_limit = 0;   // see kChainLimit; 0: one chain
  int64_t shared_bytes = 0;
  int64_t packed_bytes = 0;  // size of packed weights, whether or not they are used
  int64_t least_run = 0;     // see stage_columns
  std::vector<GatherAxis> rows_axes, columns_axes;
  double microseconds = 0;
};

// The layout of an axis in shared memory, for chunks of chunk_taps taps.
struct StagedAxis {
  int64_t classes = 1;
  int64_t taps_per_class = 1;
};
StagedAxis stage_axis(const GatherAxis& axis, int64_t chunk_taps);

// The same along the width, for a row of strips. Runs of at least least_run columns are copied as
// whole rows.
struct StagedColumns {
  int64_t length;  // columns stored per class
  int64_t strips;  // separately stored strips; 1: one run of columns serves all
  int64_t class_pitch, strip_pitch, row_pitch;
  bool runs;  // a warp copies whole rows, without a table of positions
};
StagedColumns stage_columns(const GatherAxis& axis, int64_t chunk_taps, int64_t strips,
                            int64_t least_run);

// Returns whether the source is channels_last, so that neighbouring threads copy channels.
bool is_channel_fastest(const Strides& source_strides);

// Returns the tile with the shortest predicted time.
GatherShape fit_gather_shape(const ConvProblem& problem, const DeviceCaps& caps);

}  // namespace convx
