// Depthwise weight gradient of any kernel size, stride, dilation and padding, over tiles in shared
// memory:
//
//     dW[c][r][s] = sum over n, p, q of
//                   dY[n][p][q][c] * X[n][p*st + r*d - pad][q*st + s*d - pad][c]
//
// A block sums over some items (an item is a band of rows of one column tile of one image) for one
// chunk of channels and one group of taps: kTaps x kTaps of the kernel's R x S.
//
//       shared memory, one stage              registers of a thread
//       (kWindow steps down the rows)         (kChannels channels, 4 output columns)
//
//       <- column tile + halo ->
//      +------------------------+   one row   X: 3*kStride + kTaps pixels
//   X  | pixels x channels      | ----------> dY: kWindow rows x 4 pixels
//      | kWindow*kStride rows   |             accumulators: kTaps x kTaps
//      +------------------------+
//      +-------------------+
//   dY | kWindow rows      |
//      +-------------------+
//
// A step multiplies kStride rows of X with the last kWindow = ceil(kTaps / kStride) rows of dY. A
// stage is kWindow steps, so that the register index of a dY row is known at compile time.
//
// Warps: all have the same role. Thread = strip of 4 columns * vectors + vector of channels. Stages
// are copied one or more ahead and across items, with one barrier per stage. Where TMA can read the
// tensors, one thread copies them, a box for each row. Otherwise every thread copies its share
// (cp.async, 16 bytes at a time where channels allow it), which takes about 45 instructions for
// each 16 bytes: more than the multiply-adds of a 3x3 kernel. NCHW tensors are transposed by the
// copies, element by element; this serves the sizes without a strip kernel
// (strip_weight_grad_kernel.cu).
//
// Neighbouring blocks sum neighbouring items at the same time, so that the halo of column tiles
// comes from L2.
//
// Stride and dilation: kStride is 1 or 2. Any other pair is rearranged as in gather_axis.h: each
// lane of outputs is a separate item and each class of taps a separate group, within which outputs
// and taps slide by one.
//
// Shared memory: a barrier for each stage, then 2 to 4 stages; for 7x7 with 28 columns of 32
// channels in float32, 2 of 55 KB. At the end the block's accumulators are reduced there, one row
// of taps at a time, and written as partial sums, which weight_grad_sums.cu adds. The order
// of all additions is fixed.
//
// Limit: memory for 3x3 in float32; multiply-add issue from 5x5 on, by instruction counts. A step
// of a 7x7 group has 196 multiply-adds and 14 loads from shared memory.
#pragma once

#include "device/async_copy.cuh"
#include "device/cp_async.cuh"
#include "device/mbarrier.cuh"
#include "engines/cuda/depthwise/element_vector.cuh"
#include "engines/cuda/depthwise/weight_grad_geometry.h"

namespace convx {

// Whether the code is for a GPU with TMA; uses_boxes is false otherwise.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kCodeHasBoxes = true;
#else
inline constexpr bool kCodeHasBoxes = false;
#endif

// A band of rows of a column tile of one image, for one lane along each axis.
struct PixelGradItem {
  int image;
  int64_t source, target;  // start of the image's chunk of channels, in elements
  int y, x;                // source position of step 0, pixel 0; may lie outside the image
  int row, column;         // output position of step 0
  int rows, columns;       // outputs
  int steps;               // the band's rows, plus steps that only older rows of dY see
};

// Rows of one image in a stage, of x or dY.
template <typename T>
struct StagedRows {
  const T* image;   // the chunk's first channel at row 0, column 0
  int64_t h, w, c;  // strides
  int y, x;         // position of the first staged pixel
  int row_step, column_step;
  int height, width;
  int rows, pixels;  // staged; pixels outside height x width become zeros

  __device__ __forceinline__ bool contains(int at_y, int at_x) const {
    return static_cast<unsigned>(at_y) < static_cast<unsigned>(height) &&
           static_cast<unsigned>(at_x) < static_cast<unsigned>(width);
  }
};

// A block's group of taps along one axis.
struct PixelGradTaps {
  int first, count;  // within the class; count <= 0: the class has fewer groups
  int offset;        // source position of the first tap and output 0 of lane 0
  int class_index;

  __device__ __forceinline__ PixelGradTaps(const CudaAxis& axis, int group, int group_taps) {
    const int index = group / axis.classes;  // within the class
    class_index = group - index * axis.classes;
    first = index * group_taps;
    count = min(group_taps, axis.count_taps(class_index) - first);
    offset = axis.offset0 + class_index * axis.offset_step + first * axis.period;
  }
};

template <typename T, int kTaps, int kStride>
struct PixelGrad {
  static constexpr int kColumns = kPixelGradColumns;
  static constexpr int kChannels = pixel_grad_channels(kTaps);
  static constexpr int kPixels = (kColumns - 1) * kStride + kTaps;
  static constexpr int kWindow = pixel_grad_window(kTaps, kStride);
  using Sums = float[kTaps][kTaps][kChannels];
  using Grads = float[kWindow][kColumns][kChannels];

  const PixelWeightGradParams& p;
  T* const stages;
  const int channel;  // first channel of the chunk
  const PixelGradTaps row_taps, column_taps;

  __device__ __forceinline__ PixelGradItem find_item(int item) const {
    const DepthwiseTensors& t = p.t;
    int image = item;
    const int tile = p.by_tiles.split(image) * p.tile_columns;
    const int column_lane = p.by_column_lanes.split(image);
    const int segment = p.by_segments.split(image) * p.segment_rows;
    const int row_lane = p.by_row_lanes.split(image);
    PixelGradItem at;
    at.image = image;
    at.source = image * t.source_n + channel * t.source_c;
    at.target = image * t.target_n + channel * t.target_c;
    at.y = row_taps.offset + row_lane * t.row.source_step + segment * kStride * t.row.period;
    at.x =
        column_taps.offset + column_lane * t.column.source_step + tile * kStride * t.column.period;
    at.row = row_lane + segment * t.row.lanes;
    at.column = column_lane + tile * t.column.lanes;
    at.rows = min(p.segment_rows, p.by_row_lanes.divide(t.row.count - 1 - at.row + t.row.lanes));
    at.columns = min(p.tile_columns,
                     p.by_column_lanes.divide(t.column.count - 1 - at.column + t.column.lanes));
    if (at.row >= t.row.count) at.rows = 0;
    if (at.column >= t.column.count) at.rows = 0;
    at.steps = at.rows == 0 ? 0 : at.rows + (row_taps.count + kStride - 1) / kStride - 1;
    return at;
  }

  // Issues the copies of the stage that begins with step `first`, as boxes that complete on the
  // barrier. One thread calls it. Rows and columns outside of the tensors arrive as zeros.
  __device__ __forceinline__ void copy_boxes(const PixelGradMaps& maps, const T* stage,
                                             uint32_t barrier, const PixelGradItem& at,
                                             int first) const {
    const DepthwiseTensors& t = p.t;
    const int source_rows = min(kWindow, at.steps - first) * kStride;
    const int target_rows = max(min(kWindow, at.rows - first), 0);
    const uint32_t pixel_bytes = p.pitch * static_cast<uint32_t>(sizeof(T));
    const uint32_t source_bytes = p.row_pixels * pixel_bytes;
    const uint32_t target_bytes = p.tile_columns * pixel_bytes;
    arrive_expecting(barrier, source_rows * source_bytes + target_rows * target_bytes);
    uint32_t to = shared_address(stage);
    int y = at.y + first * kStride * t.row.period;
#pragma unroll 1
    for (int i = 0; i < source_rows; ++i, y += t.row.period, to += source_bytes) {
      box_copy(to, &maps.source, channel, at.x, y, at.image, barrier);
    }
    to = shared_address(stage + p.target_offset);
    y = at.row + first * t.row.lanes;
#pragma unroll 1
    for (int i = 0; i < target_rows; ++i, y += t.row.lanes, to += target_bytes) {
      box_copy(to, &maps.target, channel, at.column, y, at.image, barrier);
    }
  }

  // All threads copy the stage, with cp.async.
  __device__ __forceinline__ void copy_stage(T* stage, const PixelGradItem& at, int first) const {
    const DepthwiseTensors& t = p.t;
    StagedRows<T> source, target;
    source.image = static_cast<const T*>(t.source) + at.source;
    source.h = t.source_h, source.w = t.source_w, source.c = t.source_c;
    source.y = at.y + first * kStride * t.row.period, source.x = at.x;
    source.row_step = t.row.period, source.column_step = t.column.period;
    source.height = t.source_height, source.width = t.source_width;
    source.rows = min(kWindow, at.steps - first) * kStride, source.pixels = p.row_pixels;
    target.image = static_cast<const T*>(t.target) + at.target;
    target.h = t.target_h, target.w = t.target_w, target.c = t.target_c;
    target.y = at.row + first * t.row.lanes, target.x = at.column;
    target.row_step = t.row.lanes, target.column_step = t.column.lanes;
    target.height = t.row.count, target.width = at.column + at.columns * t.column.lanes;
    target.rows = min(kWindow, at.rows - first), target.pixels = p.tile_columns;
    const int end = min(p.chunk, t.channels - channel);
    int lane = threadIdx.x;
    if (p.in_planes) {
      const int pixel_lane = p.by_pixel_lanes.split(lane);
      if (lane >= p.line_lanes) return;
      copy_planes(stage, source, end, pixel_lane, lane);
      copy_planes(stage + p.target_offset, target, end, pixel_lane, lane);
      return;
    }
    const int unit_lane = p.by_pixel_units.split(lane);
    if (lane >= p.pixel_lanes) return;
    visit_unit<T>(p.unit, [&](auto unit) {
      constexpr int kUnit = decltype(unit)::value;
#pragma unroll 1
      for (int place = unit_lane * kUnit; place < end; place += p.pixel_units * kUnit) {
        copy_pixels<kUnit>(stage + place, source, place, p.by_row_pixels, lane);
        copy_pixels<kUnit>(stage + p.target_offset + place, target, place, p.by_tile_columns, lane);
      }
    });
  }
  // Channels_last: copies one unit of every pixel_lanes-th pixel. `place` is the unit's first
  // channel within the chunk.
  template <int kUnit>
  __device__ __forceinline__ void copy_pixels(T* to, const StagedRows<T>& rows, int place,
                                              const FastDivmod& by_pixels, int pixel_lane) const {
    const T* const image = rows.image + place;
#pragma unroll 2
    for (int i = pixel_lane; i < rows.rows * rows.pixels; i += p.pixel_lanes) {
      int y = i;
      const int x = rows.x + by_pixels.split(y) * rows.column_step;
      y = rows.y + y * rows.row_step;
      const bool inside = rows.contains(y, x);
      copy_unit<kUnit>(to + i * p.pitch, inside ? image + y * rows.h + x * rows.w : image, inside);
    }
  }
  // NCHW: copies one element of every line_lanes-th line (a line is a row of one channel). This
  // transposes.
  __device__ __forceinline__ void copy_planes(T* to, const StagedRows<T>& rows, int channels,
                                              int pixel_lane, int line_lane) const {
#pragma unroll 1
    for (int pixel = pixel_lane; pixel < rows.pixels; pixel += p.pixel_lanes) {
      const int x = rows.x + pixel * rows.column_step;
      const T* const column = rows.image + x * rows.w;
      T* const to_pixel = to + pixel * p.pitch;
      const int row_pitch = rows.pixels * p.pitch;
#pragma unroll 4
      for (int line = line_lane; line < rows.rows * p.chunk; line += p.line_lanes) {
        int row = line;
        const int place = p.by_chunk.split(row);
        const int y = rows.y + row * rows.row_step;
        const bool inside = place < channels && rows.contains(y, x);
        copy_unit<1>(to_pixel + row * row_pitch + place,
                     inside ? column + y * rows.h + place * rows.c : rows.image, inside);
      }
    }
  }

  // Adds the products of a stage. `source` and `target` point to the thread's first pixel.
  // `columns` is the thread's number of outputs; the others must not be multiplied even by zero,
  // because x may be infinite. kWhole: every thread of the block has kColumns outputs, so nothing
  // is predicated.
  template <bool kWhole>
  __device__ __forceinline__ void multiply(const T* source, const T* target,
                                           const PixelGradItem& at, int first, int columns,
                                           Grads& grad, Sums& sum) const {
#pragma unroll
    for (int j = 0; j < kWindow; ++j) {
      const int step = first + j;
      if (step >= at.steps) break;
      if (step < at.rows) {
        const T* from = target + j * p.tile_columns * p.pitch;
#pragma unroll
        for (int i = 0; i < kColumns; ++i, from += p.pitch) load_elements(grad[j][i], from);
      }
      // Row tap r multiplies the row of dY that is r / kStride rows older than the newest.
      const int first_tap = max(step - at.rows + 1, 0) * kStride;
      const int end_tap = min((step + 1) * kStride, row_taps.count);
      const unsigned wanted = (1u << end_tap) - (1u << first_tap);
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        float window[kPixels][kChannels];
        const T* from = source + (j * kStride + c) * p.row_pixels * p.pitch;
#pragma unroll
        for (int i = 0; i < kPixels; ++i, from += p.pitch) load_elements(window[i], from);
#pragma unroll
        for (int r = c; r < kTaps; r += kStride) {
          if ((wanted >> r & 1) == 0) continue;
          const auto& row = grad[(j + kWindow - r / kStride) % kWindow];
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            if (!kWhole && i >= columns) continue;
#pragma unroll
            for (int s = 0; s < kTaps; ++s) {
#pragma unroll
              for (int k = 0; k < kChannels; ++k) {
                sum[r][s][k] += row[i][k] * window[i * kStride + s][k];
              }
            }
          }
        }
      }
    }
  }

  // Reduces the accumulators over the block's strips and writes its partial sums.
  __device__ __forceinline__ void store(const Sums& sum, int split) const {
    float* const sums = reinterpret_cast<float*>(stages);  // [tap][channel of a vector][thread]
    const int threads = static_cast<int>(blockDim.x);
    const int row_weights = column_taps.count * kChannels * p.vectors;
    float* const partials = p.partials + split * p.partial_stride;
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
      if (r >= row_taps.count) break;
      __syncthreads();  // all threads have read the stages, or the previous row
#pragma unroll
      for (int i = 0; i < kTaps * kChannels; ++i) {
        sums[i * threads + threadIdx.x] = sum[r][i / kChannels][i % kChannels];
      }
      __syncthreads();
      for (int i = threadIdx.x; i < row_weights; i += threads) {
        int slot = i;
        const int vector = p.by_vectors.split(slot);
        const int filter = channel + vector * kChannels + slot % kChannels;
        if (filter >= p.t.channels) continue;
        float total = 0;
        for (int strip = 0; strip < p.strips; ++strip) {
          total += sums[slot * threads + strip * p.vectors + vector];
        }
        const CudaAxis& rows = p.t.row;
        const CudaAxis& columns = p.t.column;
        const int tap_row = (row_taps.first + r) * rows.classes + row_taps.class_index;
        const int tap_column =
            (column_taps.first + slot / kChannels) * columns.classes + column_taps.class_index;
        partials[filter * int64_t{p.taps} + tap_row * columns.taps + tap_column] = total;
      }
    }
  }
};

template <typename T, int kTaps, int kStride>
__global__ void __launch_bounds__(kPixelGradThreads, pixel_grad_blocks(kTaps))
    pixel_weight_grad_kernel(const __grid_constant__ PixelWeightGradParams p,
                             const __grid_constant__ PixelGradMaps maps) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  using Grad = PixelGrad<T, kTaps, kStride>;
  int split = blockIdx.x;
  const int channel = p.by_chunks.split(split) * p.chunk;
  const int row_group = p.by_row_groups.split(split);
  const int column_group = p.by_column_groups.split(split);
  const Grad grad{p, reinterpret_cast<T*>(shared_bytes + kPixelGradBarrierBytes), channel,
                  PixelGradTaps(p.t.row, row_group, p.group_rows),
                  PixelGradTaps(p.t.column, column_group, p.group_columns)};
  if (grad.row_taps.count <= 0 || grad.column_taps.count <= 0) return;

  int strip = threadIdx.x;
  const int place = p.by_vectors.split(strip) * Grad::kChannels;
  const int first_pixel = strip * Grad::kColumns;
  const int source_place = first_pixel * kStride * p.pitch + place;
  const int target_place = p.target_offset + first_pixel * p.pitch + place;

  const uint32_t barriers = shared_address(shared_bytes);  // one per stage, if it uses boxes
  const bool uses_boxes = kCodeHasBoxes && p.uses_boxes;
  if constexpr (kCodeHasBoxes) {
    if (uses_boxes && threadIdx.x == 0) {
      for (int i = 0; i < p.stages; ++i) init_barrier(barriers + 8 * i, 1);
      fence_barrier_init();
    }
    __syncthreads();
  }

  // The copies run up to stages - 1 stages ahead of the multiply-adds.
  int next_item = split, next_step = 0, next_slot = 0;
  PixelGradItem next = grad.find_item(next_item);
  const auto copy_next = [&] {
    if (next_item < p.items) {
      T* const stage = grad.stages + next_slot * p.stage_elements;
      if (!uses_boxes) {
        grad.copy_stage(stage, next, next_step);
      } else if constexpr (kCodeHasBoxes) {
        if (threadIdx.x == 0) {
          grad.copy_boxes(maps, stage, barriers + 8 * next_slot, next, next_step);
        }
      }
      next_step += Grad::kWindow;
      if (next_step >= next.steps) {
        next_step = 0;
        next_item += p.splits;
        if (next_item < p.items) next = grad.find_item(next_item);
      }
    }
    if (++next_slot == p.stages) next_slot = 0;
    if (!uses_boxes) commit_copies();  // possibly an empty group, because waits count groups
  };
#pragma unroll 1
  for (int i = 1; i < p.stages; ++i) copy_next();

  typename Grad::Sums sum = {};
  RingCursor stage_cursor;
#pragma unroll 1
  for (int item = split; item < p.items; item += p.splits) {
    const PixelGradItem at = grad.find_item(item);
    const int columns = at.columns - first_pixel;
    typename Grad::Grads rows = {};
    int first = 0;
    do {  // an item without rows has one empty stage
      if (uses_boxes) {
        if constexpr (kCodeHasBoxes) {
          wait_barrier(barriers + 8 * stage_cursor.slot, stage_cursor.parity);
        }
      } else {
        p.stages == 2 ? wait_copies<0>() : p.stages == 3 ? wait_copies<1>() : wait_copies<2>();
      }
      __syncthreads();  // the stage has arrived, and the previous one has been read
      copy_next();
      const T* stage = grad.stages + stage_cursor.slot * p.stage_elements;
      const auto multiply = [&]<bool kWhole>() {
        grad.template multiply<kWhole>(stage + source_place, stage + target_place, at, first,
                                       columns, rows, sum);
      };
      // Only 3x3 has a second, unpredicated copy of the code. For larger kernels predication costs
      // nothing beside their many multiply-adds.
      if (kTaps == 3 && at.columns == p.tile_columns) {
        multiply.template operator()<kTaps == 3>();
      } else {
        multiply.template operator()<false>();
      }
      stage_cursor.advance(p.stages);
      first += Grad::kWindow;
    } while (first < at.steps);
  }
  grad.store(sum, split);
}

}  // namespace convx
