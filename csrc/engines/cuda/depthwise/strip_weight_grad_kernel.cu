// Weight gradient in NCHW of depthwise layers and of groups of few channels, for the kernel sizes
// of strip_shapes.h. For each pair of a filter k and a channel c of its group:
//
//     dW[k][c][r][s] = sum over n, p, q of  dY[n][k][p][q] * X[n][c][p*st + r - pad][q*st + s -
//     pad]
//
// The same traversal as strip_kernel.cuh, with the roles of weights and outputs exchanged: a thread
// goes down a strip of columns and multiplies each source row with the rows of dY that see it, the
// last few of which stay in registers. A thread keeps its R*S accumulators over all its strips.
// They are then reduced over the block, which works for one pair, and written as partial sums;
// weight_grad_sums.cu adds the sums of all blocks. The order of all additions is fixed.
//
// Shared memory: [warp][tap] floats for the reduction.
// Loads have up to 16 bytes; unaligned_weight_grad_kernel serves tensors that are not aligned to
// them. Grid: pairs fastest, then splits of the strips of all images. The pairs of a group read the
// same planes at the same time, from L2.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "engines/cuda/depthwise/element_vector.cuh"
#include "engines/cuda/depthwise/strip_row.cuh"
#include "engines/cuda/depthwise/weight_grad_geometry.h"

namespace convx {

// Sums each of the values over the block's threads. Thread i returns the sum of value i. `shared`
// has room for kCount values per warp.
template <int kCount>
__device__ __forceinline__ float sum_over_block(const float (&values)[kCount], float* shared) {
  static_assert(kCount <= kDepthwiseThreads);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float sum = values[i];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) shared[warp * kCount + i] = sum;
  }
  __syncthreads();
  float sum = 0;
  if (threadIdx.x < kCount) {
#pragma unroll
    for (int w = 0; w < kDepthwiseThreads / 32; ++w) sum += shared[w * kCount + threadIdx.x];
  }
  return sum;
}

template <typename T, int kIndex, int kColumns>
struct WeightGradStrip {
  using Row = StripRow<T, kIndex, kColumns>;
  using Grad = ElementVector<T, kColumns>;  // of one row of dY
  static constexpr StripShape kShape = kStripShapes[kIndex];
  static constexpr int kStride = kShape.stride;
  static constexpr int kTaps = kShape.row_taps * kShape.column_taps;
  static constexpr int kRows = (kShape.row_taps + kStride - 1) / kStride;  // of dY, per step

  // Adds the products of a step. grad[m] is the m-th row before the newest, and wanted(m) returns
  // whether it belongs to the strip. Other rows must be skipped, not multiplied as zeros, because a
  // source value may be infinite.
  template <typename Wanted>
  __device__ __forceinline__ static void multiply(
      const float (&window)[kStride][Row::kReads.elements()], const float (&grad)[kRows][kColumns],
      const Wanted& wanted, float (&sum)[kTaps]) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (!wanted(m)) continue;
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        const int r = c + m * kStride;
        if (r >= kShape.row_taps) continue;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
#pragma unroll
          for (int s = 0; s < kShape.column_taps; ++s) {
            sum[r * kShape.column_taps + s] +=
                grad[m][i] * window[c][Row::kReads.left - kShape.left + i * kStride + s];
          }
        }
      }
    }
  }

  // `source` is the strip's first column in row 0 of its plane, `target` in its first output row.
  __device__ __forceinline__ static void add(const DepthwiseTensors& t, const T* source,
                                             const T* target, int column, int first_row,
                                             int end_row, float (&sum)[kTaps]) {
    constexpr int kAhead = strip_steps_ahead(kShape, kColumns);
    int limits[Row::kReads.loads()];
    Row::set_limits(t, column, end_row, limits);
    int step = first_row;
    const int end_step =
        clamp(find_step<kStride>(t, t.source_height - 1) + 1, first_row + 1, end_row + kRows - 1);
    int y = first_row * kStride + t.row.offset0;
    int next_row = first_row;
    source += y * t.source_h;
    Row rows[kAhead][kStride];
    Grad grad_rows[kAhead];
    const auto load_step = [&](Row(&to)[kStride], Grad& grad_row) {
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        to[c].load(source, y, limits);
        source += t.source_h;
        ++y;
      }
      grad_row.load(target, next_row < end_row);
      target += t.target_h;
      ++next_row;
    };
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) load_step(rows[ahead], grad_rows[ahead]);

    float grad[kRows][kColumns] = {};
    do {  // there is at least one step
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        if (ahead > 0 && step >= end_step) break;
        shift_rows(grad);
        grad_rows[ahead].widen_to(grad[0]);
        float window[kStride][Row::kReads.elements()];
#pragma unroll
        for (int c = 0; c < kStride; ++c) rows[ahead][c].widen_to(window[c]);
        if (step - (kRows - 1) >= first_row && step < end_row) {
          multiply(window, grad, [](int) { return true; }, sum);
        } else {
          const auto wanted = [&](int m) { return step - m >= first_row && step - m < end_row; };
          multiply(window, grad, wanted, sum);
        }
        load_step(rows[ahead], grad_rows[ahead]);
        ++step;
      }
    } while (step < end_step);
  }
};

template <typename T, int kIndex, int kColumns>
__global__ void __launch_bounds__(kDepthwiseThreads, weight_grad_blocks_per_sm(kStripShapes[kIndex],
                                                                               sizeof(T), kColumns))
    strip_weight_grad_kernel(const __grid_constant__ StripWeightGradParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  using Strip = WeightGradStrip<T, kIndex, kColumns>;
  const DepthwiseTensors& t = p.t;
  int split = blockIdx.x;
  const int pair = p.by_pairs.split(split);
  int filter = pair;
  const int group_channel = p.by_group_channels.split(filter);
  const int channel = p.by_multiplier.divide(filter) * p.group_channels + group_channel;
  const int end_item = min((split + 1) * p.items_per_split, p.items);
  const T* source = static_cast<const T*>(t.source) + channel * t.source_c;
  const T* target = static_cast<const T*>(t.target) + filter * t.target_c;
  float sum[Strip::kTaps] = {};
#pragma unroll 1
  for (int item = split * p.items_per_split + threadIdx.x; item < end_item;
       item += kDepthwiseThreads) {
    int image = item;
    const int strip = p.by_strips.split(image);
    const int first_row = p.by_segments.split(image) * p.segment_rows;
    const int end_row = min(first_row + p.segment_rows, t.row.count);
    const int column = strip * Strip::Row::kReads.span;
    Strip::add(t, source + image * t.source_n + column,
               target + image * t.target_n + first_row * t.target_h + strip * kColumns, column,
               first_row, end_row, sum);
  }
  const float total = sum_over_block(sum, reinterpret_cast<float*>(shared_bytes));
  if (threadIdx.x < Strip::kTaps) {
    p.partials[split * p.partial_stride + pair * int64_t{Strip::kTaps} + threadIdx.x] = total;
  }
}

// One strip of unaligned_weight_grad_kernel.
template <typename T>
struct UnalignedStrip {
  const DepthwiseTensors& t;
  const StripShape& shape;
  const T *source, *target;  // column 0 of the plane, and the strip's first column of dY
  int column, columns;       // source column under the first output; outputs of a row
  int first_row, end_row;

  // Adds the products of row r of the taps to sum[column tap].
  __device__ __forceinline__ void add(int r, float (&sum)[kMostStripColumnTaps]) const {
    const int open_rows = (shape.row_taps + shape.stride - 1) / shape.stride;
    const int end_step = clamp(find_step(t, t.source_height - 1, shape.stride) + 1, first_row + 1,
                               end_row + open_rows - 1);
    const int source_end = find_source_end(t, end_row, shape.stride, shape.row_taps);
    const int end_output = min(end_row, end_step - r / shape.stride);
#pragma unroll 1
    for (int output = first_row; output < end_output; ++output) {
      const int y = output * shape.stride + t.row.offset0 + r;
      const bool has_row = static_cast<unsigned>(y) < static_cast<unsigned>(source_end);
      const T* const row = source + y * t.source_h;
#pragma unroll 1
      for (int i = 0; i < columns; ++i) {
        const float grad = to_accumulate(target[output * t.target_h + i]);
        const int first = column + i * shape.stride - shape.left;
#pragma unroll
        for (int s = 0; s < kMostStripColumnTaps; ++s) {
          if (s >= shape.column_taps) break;
          const int x = first + s;
          const bool exists =
              has_row && static_cast<unsigned>(x) < static_cast<unsigned>(t.source_width);
          sum[s] += grad * (exists ? to_accumulate(row[x]) : 0.f);
        }
      }
    }
  }
};

// The same sums, added in the same order, for tensors that are not aligned to the loads of the
// kernels above: results must not depend on addresses. Such tensors are rare, so one kernel serves
// all shapes. It goes through the strips once for each row of the taps, element by element.
// Shared memory: [warp][kMostStripColumnTaps] floats.
template <typename T>
__global__ void __launch_bounds__(kDepthwiseThreads)
    unaligned_weight_grad_kernel(const __grid_constant__ StripWeightGradParams p, StripShape shape,
                                 int columns) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const DepthwiseTensors& t = p.t;
  int split = blockIdx.x;
  const int pair = p.by_pairs.split(split);
  int filter = pair;
  const int group_channel = p.by_group_channels.split(filter);
  const int channel = p.by_multiplier.divide(filter) * p.group_channels + group_channel;
  const int end_item = min((split + 1) * p.items_per_split, p.items);
  const T* const source = static_cast<const T*>(t.source) + channel * t.source_c;
  const T* const target = static_cast<const T*>(t.target) + filter * t.target_c;
  const int taps = shape.row_taps * shape.column_taps;
  float* const partials = p.partials + split * p.partial_stride + pair * int64_t{taps};
#pragma unroll 1
  for (int r = 0; r < shape.row_taps; ++r) {
    float sum[kMostStripColumnTaps] = {};
#pragma unroll 1
    for (int item = split * p.items_per_split + threadIdx.x; item < end_item;
         item += kDepthwiseThreads) {
      int image = item;
      const int strip = p.by_strips.split(image);
      const int first_row = p.by_segments.split(image) * p.segment_rows;
      const UnalignedStrip<T> work{t,
                                   shape,
                                   source + image * t.source_n,
                                   target + image * t.target_n + strip * columns,
                                   strip * columns * shape.stride,
                                   columns,
                                   first_row,
                                   min(first_row + p.segment_rows, t.row.count)};
      work.add(r, sum);
    }
    const float total = sum_over_block(sum, reinterpret_cast<float*>(shared_bytes));
    if (static_cast<int>(threadIdx.x) < shape.column_taps) {
      partials[r * shape.column_taps + threadIdx.x] = total;
    }
    __syncthreads();  // the next row of taps overwrites shared memory
  }
}

void launch_weight_grad(const LaunchSite& site, const StripWeightGradFit& fit,
                        const Buffers& buffers) {
  const StripWeightGradFit made = make_strip_weight_grad(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const Grid grid(made.blocks);
    if (!made.aligned) {
      constexpr size_t kBytes = kDepthwiseThreads / 32 * kMostStripColumnTaps * sizeof(float);
      return launch_kernel<unaligned_weight_grad_kernel<T>>(site, grid, kDepthwiseThreads, kBytes,
                                                            made.params, kStripShapes[made.shape],
                                                            made.columns);
    }
    const StripKernel wanted{made.shape, made.columns};
    launch_listed<kStripKernels>(site, wanted, [&]<StripKernel kKernel>() {
      if constexpr (has_weight_grad_kernel(kStripShapes[kKernel.shape], kKernel.columns)) {
        launch_kernel<strip_weight_grad_kernel<T, kKernel.shape, kKernel.columns>>(
            site, grid, kDepthwiseThreads, made.shared_bytes, made.params);
      }
    });
  });
  add_partial_sums(site, fit.splits, buffers);
}

}  // namespace convx
