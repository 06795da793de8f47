// The epilogue of the wgmma and mma.sync kernels: turns accumulators into target values, chooses
// where they go, and recomputes those that became NaN or infinite.
#pragma once

#include <cfloat>
#include <type_traits>

#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"
#include "planning/tensor_params.h"

namespace convx {

// Turns a filter's accumulators into target values: undoes the scales of its operands and adds the
// bias. Make it before the last MMAs complete, so that its loads overlap with them.
template <TensorMath kMath>
struct Finish {
  float bias = 0;
  Unscale unscale{};  // scaled fp16

  Finish() = default;
  // source_scale, filter_scale: those of scaled fp16 (HalfScales); ignored otherwise.
  __device__ __forceinline__ Finish(float bias, float source_scale, float filter_scale)
      : bias(bias) {
    if constexpr (is_half(kMath)) unscale = Unscale(source_scale, filter_scale);
  }

  __device__ __forceinline__ float operator()(float accumulator) const {
    if constexpr (is_half(kMath)) {
      return fmaf(accumulator * unscale.first, unscale.second, bias);
    } else {
      return kMath == TensorMath::kIeee ? fmaf(accumulator, kSplitUnscale, bias)
                                        : accumulator + bias;
    }
  }
};

// Calls visit with one of two targets, the whole one or the float32 partial sums of a split-K
// slice, and with the bias to add; partial sums get none.
template <typename Whole, typename Slice, typename Bias, typename Visit>
__device__ __forceinline__ void visit_whole_or_slice(bool is_slice, const Whole& whole,
                                                     const Slice& slice, const Bias* bias,
                                                     const Visit& visit) {
  if constexpr (std::is_same_v<Whole, Slice>) {  // one copy of the code for both
    Whole target = whole;
    if (is_slice) target = slice;
    visit(target, is_slice ? nullptr : bias);
  } else if (is_slice) {
    visit(slice, static_cast<const Bias*>(nullptr));
  } else {
    visit(whole, bias);
  }
}

// Accumulators may become NaN or infinite although the definition gives a finite value: float32
// values that were split overflow early, and infinities split into NaN; padding zeros times an
// infinite operand give NaN, which the definition does not have. They are recomputed in float32.

// Whether an accumulator of split values must be recomputed: splitting an infinity gives NaN where
// float32 gives an infinity, and large values overflow early.
__device__ __forceinline__ bool is_not_finite(float sum) { return !(fabsf(sum) <= FLT_MAX); }

// An accumulator to be recomputed.
struct RecomputedSum {
  int group, filter;       // the filter within its group
  int image, row, column;  // target coordinates
  int first, last;         // channels of this split-K slice
  bool folded;             // first and last count channel * taps + tap
};

// Recomputes it in float32.
static __device__ __noinline__ float recompute_sum(const TensorParams& p, const RecomputedSum& at) {
  const float* source = static_cast<const float*>(p.source) + at.image * p.source_n +
                        static_cast<int64_t>(at.group) * p.group_sources * p.source_c;
  const float* filters = static_cast<const float*>(p.filters) + at.group * p.filter_group +
                         at.filter * p.filter_target;
  const int taps = p.tap_rows * p.tap_columns;
  float sum = 0;
  for (int tap = 0; tap < taps; ++tap) {
    const int i = tap / p.tap_columns, j = tap % p.tap_columns;
    const int row = at.row * p.source_step_h + p.offset_h0 + i * p.offset_h_step;
    const int column = at.column * p.source_step_w + p.offset_w0 + j * p.offset_w_step;
    if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.source_height) ||
        static_cast<unsigned>(column) >= static_cast<unsigned>(p.source_width)) {
      continue;
    }
    const float* from = source + row * p.source_h + column * p.source_w;
    const float* weight = filters + (p.tap_r0 + i * p.tap_r_step) * p.filter_r +
                          (p.tap_s0 + j * p.tap_s_step) * p.filter_s;
    for (int c = 0; c < p.group_sources; ++c) {
      const int lane = at.folded ? c * taps + tap : c;
      if (lane < at.first || lane >= at.last) continue;  // another slice's
      sum = fmaf(from[c * p.source_c], weight[c * p.filter_source], sum);
    }
  }
  return sum;
}

// Replaces every accumulator that is NaN by add(index). If none is, the accumulators stay in
// registers.
template <int kCount, typename Add>
__device__ __forceinline__ void recompute_nans(float (&sums)[kCount], const Add& add) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) total += sums[i];
  if (total == total) return;  // a NaN total may also come from infinities of both signs
  float all[kCount];           // in local memory, so that a loop can index it
#pragma unroll
  for (int i = 0; i < kCount; ++i) all[i] = sums[i];
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    if (all[i] != all[i]) all[i] = add(i);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = all[i];
}

}  // namespace convx
