// What the depthwise kernels are told. Plain data: filled on the host, read from constant memory.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_axis.h"
#include "engines/cuda_staging.h"

namespace convx {

constexpr int kDepthwiseThreads = 128;
constexpr int kDepthwiseVector = 4;  // elements of shared memory that are read at once

// What a thread computes at a time. The plane kernel: 4 rows of 4 or 8 columns, 16 bytes of source
// either way, so that neighbouring threads' reads spread over all banks. The pixel kernel: 8 rows
// of one column and 4 channels.
constexpr int kPlaneRows = 4;
constexpr int count_plane_columns(int64_t element_bytes) { return element_bytes == 4 ? 4 : 8; }
template <typename T>
constexpr int kPlaneColumns = count_plane_columns(sizeof(T));
constexpr int kChannelsLastRows = 8;

// Blocks of the plane kernel whose registers fit on a multiprocessor, by taps multiplied at a time.
constexpr int plane_blocks_per_sm(int64_t element_bytes, int taps) {
  return element_bytes == 2 ? 4 : taps > 4 ? 5 : 6;
}

// What the plane kernel's threads look up about a plane of the tile.
struct PlaneEntry {
  int start;  // of its results in shared memory, in elements; where rows are spans of their own, of
              // the first one, within 16 bytes
  float bias;
};

// What both kernels need to know about the tensors.
struct DepthwiseTensors {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t weight_k, weight_r, weight_s;
  int images, channels, multiplier;  // filters of a channel: multiplier
  int source_height, source_width;
  CudaAxis row, column;
  FastDivmod by_taps, by_column_taps;

#ifdef __CUDACC__
  // A tap of a filter in w, in elements; taps count by growing offset, columns fastest.
  __device__ int64_t locate_weight(int64_t k, int r, int s) const {
    return k * weight_k + (row.tap0 + r * row.tap_step) * weight_r +
           (column.tap0 + s * column.tap_step) * weight_s;
  }
#endif
};

// The plane kernel: columns are neighbours in memory.
struct PlaneParams {
  DepthwiseTensors t;
  StagePlan stage;
  int tile_planes;           // planes (one channel of one image) of a tile
  int tile_rows, tile_cols;  // of one lane: multiples of what a thread computes
  int column_shift;          // the first tile begins this many lattice columns left of the output
  int planes;                // of the whole problem
  int cells;                 // what threads compute at a time: so many in a tile
  // Elements between planes, the source rows of neighbouring output rows (of one lane), those of
  // neighbouring lanes and classes, the segments of a line and those of neighbouring classes.
  int plane_pitch, row_step, row_lane_step, row_class_step, segment_pitch, class_step;
  int segment_columns;   // columns copied per segment
  int filters_per_part;  // filters of a channel that one block computes
  // Floats between the column classes of a row of weights, the rows, the rows of one class, planes.
  int class_taps_pitch, weight_pitch, weight_step, plane_weights;
  int weights_offset, table_offset, results_offset;  // bytes
  // Results lie in shared memory as in global memory, in spans: neighbours in both. A span holds
  // all planes of the tile, the tile's rows of one plane, or one row.
  int span_pitch;  // elements from one span to the next
  bool rows_apart, planes_together;
  FastDivmod by_channels, by_parts, by_column_tiles, by_row_tiles;
  FastDivmod by_strips, by_column_lanes, by_row_groups, by_row_lanes, by_segment_units, by_classes;
};

// The strip kernel: columns are neighbours in memory, and the kernel size is compiled in.
struct StripParams {
  DepthwiseTensors t;
  int threads;                                                   // that have a strip
  int segment_rows;                                              // output rows of a strip
  FastDivmod by_strips, by_segments, by_filters, by_multiplier;  // strips of a row; of all filters
};

// The strip kernel over pixels: 3x3 taps. A thread has 4 channels of so many columns; blocks whose
// registers fit on a multiprocessor.
constexpr int kPixelStripTaps = 3;
constexpr int pixel_strip_columns(int stride) { return stride == 1 ? 2 : 1; }
constexpr int kPixelStripBlocks = 4;
// Steps that are loaded before they are multiplied.
constexpr int pixel_strip_steps_ahead(int64_t element_bytes) { return element_bytes == 4 ? 2 : 3; }
struct PixelStripParams {
  DepthwiseTensors t;
  int threads;
  int segment_rows;                                // output rows of a thread
  bool dense_weights;                              // filter after filter, tap after tap, aligned
  FastDivmod by_vectors, by_columns, by_segments;  // vectors of 4 channels
};

// The weight gradient in strips: a block sums over some of the strips of one filter.
struct StripWeightGradParams {
  DepthwiseTensors t;  // those of the forward pass, but that the target is read
  float* partials;     // [part][filter][tap]
  int64_t partial_stride;
  int items, items_per_part;  // strips of all images: of a filter, of a block
  int segment_rows;
  FastDivmod by_strips, by_segments, by_filters, by_multiplier;
};

// The same over tiles in shared memory (pixel_weight_grad_kernel.cuh): a block sums for a chunk of
// channels and a group of at most taps x taps taps.
struct PixelGradCore {  // a compiled kernel
  int taps, stride;
};
inline constexpr PixelGradCore kPixelGradCores[] = {{3, 2}, {5, 2}, {3, 1}, {5, 1}, {7, 1}};
constexpr int kPixelGradThreads = 256;  // at most
constexpr int kPixelGradColumns = 4;    // outputs of a thread
constexpr int kPixelGradMostStages = 4;
// Channels of a thread, rows of dY that a step multiplies, and blocks whose registers fit on a
// multiprocessor.
constexpr int pixel_grad_channels(int taps) { return taps == 3 ? 2 : 1; }
constexpr int pixel_grad_window(int taps, int stride) { return (taps + stride - 1) / stride; }
constexpr int pixel_grad_blocks(int taps) { return taps == 7 ? 2 : 3; }
struct PixelWeightGradParams {
  // Those of the forward pass, but that the target is read. Along each axis the source position of
  // output b * lanes + lane and tap m * classes + cls is
  //     period * (b * core stride + m) + lane * source_step + cls * offset_step + offset0 .
  DepthwiseTensors t;
  float* partials;  // [part][filter][tap]
  int64_t partial_stride;
  int taps;
  int items, items_per_part;
  int segment_rows, tile_columns;  // outputs of an item, of one lane
  int chunk, vectors, strips;      // channels of a block; threads: vectors of channels x strips
  int group_rows, group_columns;   // taps of a group, of one class
  int stages, stage_elements;      // stages in shared memory, and their size
  int target_offset;               // where dY begins in a stage, in elements
  int row_pixels, pitch;           // source pixels of a row; elements from pixel to pixel
  // Elements that a thread copies at once. The block copies pixel_units units of each of
  // pixel_lanes pixels at once.
  int unit, pixel_units, pixel_lanes;
  // Columns are neighbours in memory, not channels. The block copies pixel_lanes pixels of each of
  // line_lanes lines at once, element by element; a line is a row of one channel.
  bool in_planes;
  int line_lanes;
  FastDivmod by_chunks, by_row_groups, by_column_groups;
  FastDivmod by_tiles, by_column_lanes, by_segments, by_row_lanes;  // of an item
  FastDivmod by_vectors, by_pixel_units, by_row_pixels, by_tile_columns;
  FastDivmod by_pixel_lanes, by_chunk;
};

// The pixel kernel: channels are neighbours in memory.
struct ChannelsLastParams {
  DepthwiseTensors t;
  StagePlan stage;
  int tile_rows, tile_cols;  // rows of one lane, a multiple of kChannelsLastRows; columns
  int chunk;                 // channels of a tile, a multiple of kDepthwiseVector
  int cells;             // pieces of work of a tile, kChannelsLastRows x kDepthwiseVector outputs
  int staged_cols;       // pixels of a line
  int filters_per_part;  // filters of a channel that one block computes
  int weights_offset;    // bytes
  bool vector_stores;    // four channels of the target at once
  FastDivmod by_parts, by_chunks, by_column_tiles, by_row_tiles;
  FastDivmod by_vectors, by_columns, by_row_groups, by_pixel_units;
};

}  // namespace convx
