// Parameters of the depthwise kernels. Plain data: filled on the host, read from constant memory.
#pragma once

#include <cstdint>

#include "core/fast_divmod.h"
#include "planning/boxed_tensor.h"
#include "planning/cuda_axis.h"
#include "planning/staged_rows.h"

namespace convx {

constexpr int kDepthwiseThreads = 128;
constexpr int kDepthwiseVector = 4;  // elements per shared-memory load

// The outputs that a thread computes at once. Plane kernel: 4 rows of 4 columns (8 in 16 bits). The
// columns are 16 bytes of source in either case, so that the loads of neighbouring threads spread
// over all banks. Channels_last kernel: 8 rows of one column and 4 channels.
constexpr int kPlaneRows = 4;
constexpr int count_plane_columns(int64_t element_bytes) { return element_bytes == 4 ? 4 : 8; }
template <typename T>
constexpr int kPlaneColumns = count_plane_columns(sizeof(T));
constexpr int kChannelsLastRows = 8;

// Resident blocks of the plane kernel, limited by registers; `taps` are multiplied at once.
constexpr int plane_blocks_per_sm(int64_t element_bytes, int taps) {
  return element_bytes == 2 ? 4 : taps > 4 ? 5 : 6;
}

// Values that the plane kernel's threads look up for a plane of the tile.
struct PlaneEntry {
  // Start of the plane's outputs in shared memory, in elements. If each row is its own span
  // (rows_apart), only the offset of the first row within 16 bytes.
  int start;
  float bias;
};

// The tensors, for all depthwise kernels.
struct DepthwiseTensors {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t weight_k, weight_r, weight_s;
  int images, channels, multiplier;  // multiplier: filters per channel
  int source_height, source_width;
  CudaAxis row, column;
  FastDivmod by_taps, by_column_taps;

#ifdef __CUDACC__
  // Offset of a tap in w, in elements. Taps count by increasing offset, columns fastest.
  __device__ int64_t locate_weight(int64_t k, int r, int s) const {
    return k * weight_k + (row.tap0 + r * row.tap_step) * weight_r +
           (column.tap0 + s * column.tap_step) * weight_s;
  }
#endif
};

// The plane kernel: columns are contiguous (NCHW).
struct PlaneParams {
  DepthwiseTensors t;
  StagePlan stage;
  int tile_planes;           // planes (one channel of one image) of a tile
  int tile_rows, tile_cols;  // per lane: multiples of a thread's outputs
  int column_shift;          // the first tile begins this many lattice columns left of the output
  int planes;                // in the whole problem
  int cells;                 // per tile; a thread computes one cell at a time
  // Element strides between planes, between the source rows of neighbouring output rows (of one
  // lane), of neighbouring lanes and of classes, between the segments of a line, and between the
  // segments of neighbouring classes.
  int plane_pitch, row_step, row_lane_step, row_class_step, segment_pitch, class_step;
  int segment_columns;   // copied columns per segment
  int filters_per_part;  // filters of a channel that one block computes
  // Floats between column classes of a row of weights, between rows, between rows of one class, and
  // between planes.
  int class_taps_pitch, weight_pitch, weight_step, plane_weights;
  int weights_offset, table_offset, results_offset;  // bytes
  // Outputs lie in shared memory as in global memory, in contiguous spans. A span is one row if
  // rows_apart, all planes of the tile if planes_together, and otherwise the tile's rows of one
  // plane.
  int span_pitch;  // elements between spans
  bool rows_apart, planes_together;
  FastDivmod by_channels, by_parts, by_column_tiles, by_row_tiles;
  FastDivmod by_strips, by_column_lanes, by_row_groups, by_row_lanes, by_segment_units, by_classes;
};

// The strip kernel: columns are contiguous, and the kernel size is a template argument.
struct StripParams {
  DepthwiseTensors t;
  int threads;                                                   // threads that have a strip
  int segment_rows;                                              // output rows of a strip
  FastDivmod by_strips, by_segments, by_filters, by_multiplier;  // by_filters: all filters
};

// The channels_last strip kernel (pixel_strip_kernel.cuh).
struct PixelStripShape {  // a compiled kernel: taps along both axes, and their common stride
  int taps, stride;

  bool operator==(const PixelStripShape&) const = default;
};
inline constexpr PixelStripShape kPixelStripShapes[] = {{3, 1}, {3, 2}, {5, 1}, {5, 2}, {7, 1}};
// Channels and neighbouring output columns of a thread.
constexpr int pixel_strip_channels(int taps) { return taps == 3 ? 4 : 2; }
constexpr int pixel_strip_columns(int taps, int stride) {
  return taps > 3 ? 4 : stride == 1 ? 2 : 1;
}
// Resident blocks per multiprocessor, limited by registers.
constexpr int pixel_strip_blocks(int taps) { return taps == 7 ? 3 : 4; }
// Prefetch distance in steps.
constexpr int pixel_strip_steps_ahead(int taps, int stride, int64_t element_bytes) {
  if (taps == 3) return element_bytes == 4 ? 2 : 3;
  return stride == 2 && element_bytes == 4 ? 1 : 2;
}
constexpr int kPixelStripVectors = 32;  // vectors of channels in a block's chunk, at most
// Floats between the taps of a channel in shared memory. One vector more than the chunk spreads the
// stores of neighbouring taps over the banks.
constexpr int pixel_strip_weight_pitch(int taps) {
  return (kPixelStripVectors + 1) * pixel_strip_channels(taps);
}
// Whether a thread keeps its weights in registers; they are in shared memory otherwise.
constexpr bool keeps_strip_weights(int taps) { return taps == 3; }
constexpr int64_t pixel_strip_shared_bytes(int taps) {
  return keeps_strip_weights(taps) ? 0 : int64_t{4} * taps * taps * pixel_strip_weight_pitch(taps);
}
struct PixelStripParams {
  DepthwiseTensors t;
  int chunk;         // channels of a block
  int items;         // strips of a chunk: columns x segments x images
  int block_items;   // strips that a block computes, one per thread and vector
  int segment_rows;  // output rows of a strip
  // Whether w is contiguous, [channel][row][column], in the order of the taps, and aligned to the
  // channels of a thread.
  bool dense_weights;
  FastDivmod by_chunks, by_vectors, by_columns, by_segments;  // by_vectors: of a chunk
};

// The strip weight gradient: a block sums over some of the strips of one filter.
struct StripWeightGradParams {
  DepthwiseTensors t;  // as in the forward pass, except that the target is an input
  float* partials;     // [part][filter][tap]
  int64_t partial_stride;
  int items, items_per_part;  // strips of all images, per filter; strips of one block
  int segment_rows;
  FastDivmod by_strips, by_segments, by_filters, by_multiplier;
};

// The tiled weight gradient (pixel_weight_grad_kernel.cuh): a block sums for one chunk of channels
// and one group of at most taps x taps taps.
struct PixelGradCore {  // a compiled kernel
  int taps, stride;
};
inline constexpr PixelGradCore kPixelGradCores[] = {{3, 2}, {5, 2}, {3, 1}, {5, 1}, {7, 1}};
constexpr int kPixelGradThreads = 256;  // per block, at most
constexpr int kPixelGradColumns = 4;    // output columns of a thread
constexpr int kPixelGradMostStages = 4;
constexpr int kPixelGradBarrierBytes = 128;  // at the start of shared memory; a multiple of 128
// Channels of a thread, rows of dY that a step multiplies, and resident blocks (by registers).
constexpr int pixel_grad_channels(int taps) { return taps == 3 ? 2 : 1; }
constexpr int pixel_grad_window(int taps, int stride) { return (taps + stride - 1) / stride; }
constexpr int pixel_grad_blocks(int taps) { return taps == 7 ? 2 : 3; }
struct PixelWeightGradParams {
  // As in the forward pass, except that the target is an input. Along each axis the source position
  // of output b * lanes + lane and tap m * classes + cls is
  //     period * (b * core stride + m) + lane * source_step + cls * offset_step + offset0 .
  DepthwiseTensors t;
  float* partials;  // [part][filter][tap]
  int64_t partial_stride;
  int taps;
  int items, parts;                // part i sums items i, i + parts, ...
  int segment_rows, tile_columns;  // outputs of an item, per lane
  int chunk, vectors, strips;      // channels of a block; threads: vectors of channels x strips
  int group_rows, group_columns;   // taps of a group, in one class
  int stages, stage_elements;      // number of stages, and elements of each
  int target_offset;               // start of dY in a stage, in elements
  int row_pixels, pitch;           // source pixels of a row; elements between pixels
  // One thread copies all rows, as TMA boxes of row_pixels or tile_columns pixels.
  bool uses_boxes;
  // Otherwise: elements per copy. The block copies pixel_units units of each of pixel_lanes pixels
  // at once.
  int unit, pixel_units, pixel_lanes;
  // True in NCHW. Then the block copies pixel_lanes pixels of each of line_lanes lines at once,
  // element by element; a line is a row of one channel.
  bool in_planes;
  int line_lanes;
  FastDivmod by_chunks, by_row_groups, by_column_groups;
  FastDivmod by_tiles, by_column_lanes, by_segments, by_row_lanes;  // decompose an item
  FastDivmod by_vectors, by_pixel_units, by_row_pixels, by_tile_columns;
  FastDivmod by_pixel_lanes, by_chunk;
};

// The tensors of that kernel if it uses boxes: of one row, chunk channels, and row_pixels or
// tile_columns pixels.
struct PixelGradMaps {
  TensorMap source, target;
};

// The weight gradient that keeps rows of taps in registers (row_weight_grad_kernel.cuh).
struct RowGradCore {  // a compiled kernel: taps along both axes, and their common stride
  int taps, stride;

  bool operator==(const RowGradCore&) const = default;
};
inline constexpr RowGradCore kRowGradCores[] = {{5, 1}, {5, 2}, {7, 1}};
constexpr int kRowGradThreads = 512;                                        // per block, at most
constexpr int kRowGradChannels = 2;                                         // of a thread
constexpr int row_grad_columns(int stride) { return stride == 1 ? 7 : 4; }  // outputs of an item
struct RowWeightGradParams {
  DepthwiseTensors t;  // as in the forward pass, except that the target is an input
  void* result;        // dW, written if there is one part
  float* partials;     // [part][filter][tap] otherwise
  int64_t partial_stride;
  int parts, items, part_items;  // items: rows x column tiles x images
  int chunk;                     // channels of a block
  int slices, slice_threads;     // threads of a slice: vectors of two channels x rows of taps
  FastDivmod by_chunks, by_vectors, by_slice_threads;
  FastDivmod by_rows, by_tiles;  // decompose an item
};

// The channels_last tile kernel: channels are contiguous.
struct ChannelsLastParams {
  DepthwiseTensors t;
  StagePlan stage;
  int tile_rows, tile_cols;  // rows per lane, a multiple of kChannelsLastRows; columns
  int chunk;                 // channels of a tile, a multiple of kDepthwiseVector
  int cells;                 // cells of a tile, of kChannelsLastRows x kDepthwiseVector outputs
  int staged_cols;           // pixels of a line
  int filters_per_part;      // filters of a channel that one block computes
  int weights_offset;        // bytes
  bool vector_stores;        // four channels of an output pixel are stored as one vector
  FastDivmod by_parts, by_chunks, by_column_tiles, by_row_tiles;
  FastDivmod by_vectors, by_columns, by_row_groups, by_pixel_units;
};

}  // namespace convx
