// Depthwise forward over planes in NCHW for the kernel sizes that networks use, in registers alone.
//
// A thread owns some neighbouring columns of a plane, a strip, and walks down the rows. Every
// source row is read once, adds to the sums of all output rows that see it, and is forgotten:
//
//      source            sums in registers, 3x3, stride 1
//      row y     ---->   output y-1: taps of row 2: complete, stored
//                        output y  : taps of row 1
//                        output y+1: taps of row 0
//      row y+1   ---->   the sums move up by one
//
// The weights stay in registers too, so that nearly all instructions are multiplications. Columns
// beside the strip come from L1, where the neighbouring thread's load has just brought them. No
// shared memory and no barriers: the lanes of a warp may work on different planes, and small planes
// leave none idle. Rows to come are loaded a few steps ahead.
//
// A step is `stride` source rows, and completes one output row. Grid: strips fastest, then segments
// of the rows, then planes.
#pragma once

#include "engines/cuda_depthwise/strip_row.cuh"
#include "engines/cuda_depthwise/strip_store.cuh"

namespace convx {

// Which strip a thread computes.
struct StripPlace {
  int strip, image, filter;  // filter: of all
  int first_row, end_row;    // output rows
};

__device__ __forceinline__ StripPlace locate_strip(const StripParams& p, int index) {
  StripPlace place;
  place.strip = p.by_strips.split(index);
  place.first_row = p.by_segments.split(index) * p.segment_rows;
  place.end_row = min(place.first_row + p.segment_rows, p.t.row.count);
  place.filter = p.by_filters.split(index);
  place.image = index;
  return place;
}

// kIndex: of the shape in kStripShapes.
template <typename T, int kIndex, int kColumns>
__global__ void __launch_bounds__(kDepthwiseThreads,
                                  strip_blocks_per_sm(kStripShapes[kIndex], sizeof(T), kColumns))
    strip_kernel(const __grid_constant__ StripParams p) {
  using Row = StripRow<T, kIndex, kColumns>;
  constexpr StripShape kShape = kStripShapes[kIndex];
  constexpr StripReads kReads = Row::kReads;
  constexpr int kStride = kShape.stride;
  constexpr int kAhead = strip_steps_ahead(kShape, kColumns);
  // Output rows that see a step: sum[m] is of the row m before the newest.
  constexpr int kSums = (kShape.row_taps + kStride - 1) / kStride;

  const int index = blockIdx.x * kDepthwiseThreads + threadIdx.x;
  if (index >= p.threads) return;  // whole warps where lanes work together
  const StripPlace place = locate_strip(p, index);
  const DepthwiseTensors& t = p.t;
  const int column = place.strip * kReads.span;

  const auto [first_step, end_step] = find_steps<kStride, kSums>(t, place.first_row, place.end_row);
  int step = first_step;
  int y = step * kStride + t.row.offset0;
  int limits[kReads.loads()];
  Row::set_limits(t, column, place.end_row, limits);

  float weight[kShape.row_taps][kShape.column_taps];
  const T* weights = static_cast<const T*>(t.weight) + t.locate_weight(place.filter, 0, 0);
#pragma unroll
  for (auto& taps : weight) {
    const T* next = weights;
#pragma unroll
    for (float& tap : taps) {
      tap = to_accumulate(__ldg(next));
      next += t.column.tap_step * t.weight_s;
    }
    weights += t.row.tap_step * t.weight_r;
  }

  const T* source = static_cast<const T*>(t.source) + place.image * t.source_n +
                    p.by_multiplier.divide(place.filter) * t.source_c + y * t.source_h + column;
  const auto load_step = [&](Row(&rows)[kStride]) {
#pragma unroll
    for (int c = 0; c < kStride; ++c) {
      rows[c].load(source, y, limits);
      source += t.source_h;
      ++y;
    }
  };
  Row rows[kAhead][kStride];
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) load_step(rows[ahead]);

  const float bias =
      t.bias == nullptr ? 0.0f : to_accumulate(static_cast<const T*>(t.bias)[place.filter]);
  float sum[kSums][kColumns];
#pragma unroll
  for (auto& row : sum) {
#pragma unroll
    for (float& value : row) value = bias;
  }

  int row = step - (kSums - 1);  // completed by the step
  T* target = static_cast<T*>(t.target) + place.image * t.target_n + place.filter * t.target_c +
              row * t.target_h + place.strip * kColumns;
  const StripStore<T, kColumns, shifts_rows(kShape, kColumns)> store(place.strip, t.column.count);
  do {  // there is always a step
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (ahead > 0 && step >= end_step) break;
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        float window[kReads.elements()];
        rows[ahead][c].widen_to(window);
#pragma unroll
        for (int m = kSums - 1; m >= 0; --m) {
          const int r = c + m * kStride;
          if (r >= kShape.row_taps) continue;
#pragma unroll
          for (int s = 0; s < kShape.column_taps; ++s) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
              sum[m][i] += weight[r][s] * window[kReads.left - kShape.left + i * kStride + s];
            }
          }
        }
      }
      load_step(rows[ahead]);
      store(target, sum[kSums - 1], row >= place.first_row);
      target += t.target_h;
      ++row;
      ++step;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int m = kSums - 1; m > 0; --m) sum[m][i] = sum[m - 1][i];
        sum[0][i] = bias;
      }
    }
  } while (step < end_step);
  // What no further source row adds to.
#pragma unroll
  for (int m = kSums - 1; m > 0; --m) {
    store(target, sum[m], row >= place.first_row && row < place.end_row);
    target += t.target_h;
    ++row;
  }
}

}  // namespace convx
