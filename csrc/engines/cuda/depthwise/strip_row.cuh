// Shared by the strip kernels: loading one source row of a strip, and counting steps.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/depthwise/depthwise_geometry.h"
#include "engines/cuda/depthwise/strip_shapes.h"

namespace convx {

__device__ __forceinline__ int clamp(int value, int low, int high) {
  return min(max(value, low), high);
}

// The step that reads source row y, rounded down.
__device__ __forceinline__ int find_step(const DepthwiseTensors& t, int y, int stride) {
  const int distance = y - t.row.offset0;
  return (distance - (stride - 1) * (distance < 0)) / stride;
}
template <int kStride>
__device__ __forceinline__ int find_step(const DepthwiseTensors& t, int y) {
  return find_step(t, y, kStride);
}

// The steps of a strip that read source rows inside the image. Each completes an output row, and
// kOpenRows output rows see it. Up to kOpenRows - 1 steps that would only add zeros are skipped at
// each end; their output rows are stored all the same.
struct StripSteps {
  int first, end;
};
template <int kStride, int kOpenRows>
__device__ __forceinline__ StripSteps find_steps(const DepthwiseTensors& t, int first_row,
                                                 int end_row) {
  return {clamp(find_step<kStride>(t, 0), first_row, first_row + kOpenRows - 1),
          clamp(find_step<kStride>(t, t.source_height - 1) + 1, end_row, end_row + kOpenRows - 1)};
}

// The end of the source rows that outputs before end_row see, clipped to the image.
__device__ __forceinline__ int find_source_end(const DepthwiseTensors& t, int end_row, int stride,
                                               int taps) {
  return clamp((end_row - 1) * stride + t.row.offset0 + taps, 0, t.source_height);
}
template <int kStride, int kTaps>
__device__ __forceinline__ int find_source_end(const DepthwiseTensors& t, int end_row) {
  return find_source_end(t, end_row, kStride, kTaps);
}

// One source row of a strip as it lies in memory, [left][span][right].
template <typename T, int kIndex, int kColumns>
struct StripRow {
  static constexpr StripReads kReads{kStripShapes[kIndex], sizeof(T), kColumns};
  uint32_t words[kReads.elements() / kReads.word];

  // Sets the end row of each load: 0 for loads outside the image's columns, otherwise the end of
  // the rows that outputs before end_row see. `column` is the strip's first source column.
  __device__ __forceinline__ static void set_limits(const DepthwiseTensors& t, int column,
                                                    int end_row, int (&limits)[kReads.loads()]) {
    constexpr StripShape kShape = kStripShapes[kIndex];
    const int end = find_source_end<kShape.stride, kShape.row_taps>(t, end_row);
    visit_loads([&]<int kSize>(int element, int load) {
      const unsigned x = column + element - kReads.left;
      limits[load] = x < static_cast<unsigned>(t.source_width) ? end : 0;
    });
  }

  // `at` is the strip's first column in row y, aligned to a load.
  __device__ __forceinline__ void load(const T* at, int y, const int (&limits)[kReads.loads()]) {
    visit_loads([&]<int kSize>(int element, int load) {
      const T* from = at + (element - kReads.left);
      const bool valid = static_cast<unsigned>(y) < static_cast<unsigned>(limits[load]);
      uint32_t* to = words + element / kReads.word;
      if constexpr (kReads.vector == 1) {
        *to = load_single(from, valid);
      } else {
        load_words<kSize / kReads.word>(to, from, valid);
      }
    });
  }

  __device__ __forceinline__ void widen_to(float (&window)[kReads.elements()]) const {
#pragma unroll
    for (int i = 0; i < kReads.elements(); i += kReads.word) {
      widen_word<kReads.word>(window, i, words[i / kReads.word], T{});
    }
  }

 private:
  // Calls visit<size>(first element, index) for each load.
  template <typename Visit>
  __device__ __forceinline__ static void visit_loads(const Visit& visit) {
    constexpr int kBeforeSpan = kReads.count_loads(kReads.left);
    constexpr int kBeforeRight = kBeforeSpan + kReads.count_loads(kReads.span);
    visit_part<0, kReads.left, 0>(visit);
    visit_part<kReads.left, kReads.span, kBeforeSpan>(visit);
    visit_part<kReads.left + kReads.span, kReads.right, kBeforeRight>(visit);
  }
  template <int kFirst, int kCount, int kLoad, typename Visit>
  __device__ __forceinline__ static void visit_part(const Visit& visit) {
    if constexpr (kCount > 0) {
      constexpr int kSize = kReads.load_size(kCount);
#pragma unroll
      for (int i = 0; i < kReads.count_loads(kCount); ++i) {
        visit.template operator()<kSize>(kFirst + i * kSize, kLoad + i);
      }
    }
  }
};

}  // namespace convx
