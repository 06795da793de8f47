// Stages the weights of some filters in shared memory, as float32, for kernels that pack filters in
// the layout of an MMA operand.
//
// Threads read runs of neighbours in w. The outer axis is rows (filters of the result) or channels,
// whichever has the longer stride in w:
//
//   taps next to each other   [outer][inner][tap]   a run per outer index
//   any other strides         [outer][tap][inner]   a run per outer index and tap
//
// Shared memory has the same order. Runs lie an odd number of values apart, so that the readers of
// 8 or 4 channels of a row and tap meet few bank conflicts.
#pragma once

#include <cstdint>

#include "core/arithmetic.h"
#include "device/convert.cuh"
#include "planning/tensor_params.h"

namespace convx {

struct FilterStage {
  int rows;                          // filters
  int outer_is_row, taps_are_inner;  // not 0: true
  int taps, runs, length;            // values of a run
  int pitch;                         // values from run to run
  int lanes, lane_shift;             // threads that read a run, a power of 2
  int64_t outer_stride, inner_stride;
  int64_t first_tap, tap_row_stride, tap_column_stride;
  FastDivmod by_taps, by_tap_columns;
  // The value of a row, a channel and a tap is at tap_origin + row * row_step + ...
  int row_step, channel_step, tap_step, tap_origin;

  int64_t shared_bytes() const { return int64_t{4} * runs * pitch; }

  __device__ __forceinline__ int place(int row, int channel, int tap) const {
    return tap_origin + row * row_step + channel * channel_step + tap * tap_step;
  }
};

// For `rows` filters and `channels` channels; which ones they are is said when they are staged.
inline FilterStage make_filter_stage(const TensorParams& p, int rows, int channels) {
  FilterStage stage{};
  stage.rows = rows;
  stage.taps = p.tap_rows * p.tap_columns;
  stage.by_taps = FastDivmod(stage.taps);
  stage.by_tap_columns = FastDivmod(p.tap_columns);
  stage.tap_row_stride = p.tap_r_step * p.filter_r;
  stage.tap_column_stride = p.tap_s_step * p.filter_s;
  stage.first_tap = p.tap_r0 * p.filter_r + p.tap_s0 * p.filter_s;
  stage.outer_is_row = p.filter_target >= p.filter_source;
  stage.outer_stride = stage.outer_is_row ? p.filter_target : p.filter_source;
  stage.inner_stride = stage.outer_is_row ? p.filter_source : p.filter_target;
  const int outer = stage.outer_is_row ? rows : channels;
  const int inner = stage.outer_is_row ? channels : rows;

  // Taps follow each other in w, forwards or backwards.
  const int64_t step =
      p.tap_columns > 1 ? stage.tap_column_stride : (p.tap_rows > 1 ? stage.tap_row_stride : 1);
  const bool linear = (step == 1 || step == -1) &&
                      (p.tap_rows == 1 || stage.tap_row_stride == step * p.tap_columns);
  stage.taps_are_inner = linear && stage.inner_stride == stage.taps;
  if (stage.taps_are_inner && step < 0) {  // the run begins with the last tap
    stage.first_tap -= stage.taps - 1;
    stage.tap_origin = stage.taps - 1;
  }
  stage.length = stage.taps_are_inner ? inner * stage.taps : inner;
  stage.runs = stage.taps_are_inner ? outer : outer * stage.taps;
  stage.pitch = stage.length | 1;
  stage.lanes = 1;
  while (stage.lanes < 32 && stage.lanes < stage.length) stage.lanes *= 2, ++stage.lane_shift;
  const int outer_step = stage.taps_are_inner ? stage.pitch : stage.taps * stage.pitch;
  const int inner_step = stage.taps_are_inner ? stage.taps : 1;
  stage.row_step = stage.outer_is_row ? outer_step : inner_step;
  stage.channel_step = stage.outer_is_row ? inner_step : outer_step;
  stage.tap_step = stage.taps_are_inner ? static_cast<int>(step) : stage.pitch;
  return stage;
}

inline constexpr int kInFlight = 8;  // loads that a thread starts before it stores their values

// The filters that a block stages. rows_left and channels_left: how many there are from the first
// ones on, which may be negative; what is missing is 0.
template <typename T>
class FilterStager {
 public:
  __device__ __forceinline__ FilterStager(const FilterStage& stage, const T* filters, int rows_left,
                                          int channels_left)
      : stage_(stage),
        filters_(filters + stage.first_tap),
        outer_left_(stage.outer_is_row ? rows_left : channels_left),
        step_(stage.taps_are_inner ? 1 : stage.inner_stride) {
    const int inner_left = stage.outer_is_row ? channels_left : rows_left;
    length_left_ = stage.taps_are_inner ? inner_left * stage.taps : inner_left;
  }

  // kRuns: runs that a thread reads at once, each with kInFlight / kRuns loads in flight. Loads
  // wait for no store: the compiler cannot know that the two memories differ.
  template <int kRuns>
  __device__ __forceinline__ void run(float* staged) const {
    constexpr int kLoads = kInFlight / kRuns;
    const int lane = threadIdx.x & (stage_.lanes - 1);
    const int parallel = blockDim.x >> stage_.lane_shift;
    for (int first_run = threadIdx.x >> stage_.lane_shift; first_run < stage_.runs;
         first_run += kRuns * parallel) {
      for (int first = lane; first < stage_.length; first += kLoads * stage_.lanes) {
        float values[kRuns][kLoads];
#pragma unroll
        for (int r = 0; r < kRuns; ++r) {
          const Run run = find_run(first_run + r * parallel);
#pragma unroll
          for (int j = 0; j < kLoads; ++j) {
            const int i = first + j * stage_.lanes;
            values[r][j] = i < run.left ? to_accumulate(run.from[i * step_]) : 0.f;
          }
        }
#pragma unroll
        for (int r = 0; r < kRuns; ++r) {
          const int index = first_run + r * parallel;
#pragma unroll
          for (int j = 0; j < kLoads; ++j) {
            const int i = first + j * stage_.lanes;
            if (index < stage_.runs && i < stage_.length) {
              staged[index * stage_.pitch + i] = values[r][j];
            }
          }
        }
      }
    }
  }

 private:
  struct Run {
    const T* from;
    int left;  // values that exist
  };

  __device__ __forceinline__ Run find_run(int index) const {
    int outer = index;
    int64_t offset = 0;
    if (!stage_.taps_are_inner) {
      int tap_row = stage_.by_taps.split(outer);
      const int tap_column = stage_.by_tap_columns.split(tap_row);
      offset = tap_row * stage_.tap_row_stride + tap_column * stage_.tap_column_stride;
    }
    const bool exists = index < stage_.runs && outer < outer_left_;
    return {filters_ + offset + outer * stage_.outer_stride, exists ? length_left_ : 0};
  }

  const FilterStage& stage_;
  const T* const filters_;
  const int outer_left_;
  const int64_t step_;
  int length_left_;
};

// Called by all threads of a block, for the first row and channel at `filters`.
template <typename T>
__device__ __forceinline__ void stage_filters(const FilterStage& stage, const T* filters,
                                              int rows_left, int channels_left, float* staged) {
  const FilterStager<T> stager(stage, filters, rows_left, channels_left);
  if (stage.length <= stage.lanes) return stager.template run<kInFlight>(staged);
  if (stage.length <= 4 * stage.lanes) return stager.template run<2>(staged);
  stager.template run<1>(staged);
}

}  // namespace convx
