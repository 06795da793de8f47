// The epilogue of the wgmma and mma.sync kernels: turns accumulators into target values, and
// chooses where they go.
#pragma once

#include <type_traits>

#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

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

}  // namespace convx
