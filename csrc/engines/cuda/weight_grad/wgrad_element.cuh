// Values of an operand form: how elements of X and dY become components, how accumulators become
// elements of dW, and how elements that MMAs cannot compute are computed by the definition.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/convert.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

inline constexpr float kLargestFinite = 0x1.fffffep127f;

// What the tensors of a form hold.
template <OperandForm kForm>
using element_t =
    std::conditional_t<kForm == OperandForm::kBFloat16, __nv_bfloat16,
                       std::conditional_t<kForm == OperandForm::kFloat16, __half, float>>;

// The components of two float32 values.
template <OperandForm kForm>
__device__ __forceinline__ void split_pair(float first, float second,
                                           uint32_t (&words)[count_components(kForm)]) {
  if constexpr (kForm == OperandForm::kScaledFp16) {
    words[0] = pack_float16(first, second);
  } else if constexpr (kForm == OperandForm::kScaledFp16x2) {
    const HalfPair pair(first, second);
    words[0] = pair.part[0], words[1] = pair.part[1];
  } else {
    const SplitPair pair(first, second);
#pragma unroll
    for (int j = 0; j < count_components(kForm); ++j) words[j] = pair.part[j];
  }
}

// The scale of a scaled form's operand, 1 for others.
template <OperandForm kForm, PackedSide kSide>
__device__ __forceinline__ float find_operand_scale(const WgradCall& call) {
  if constexpr (!is_scaled(kForm)) return 1;
  return kSide == PackedSide::kInput ? call.scales->source : filter_scales(call.scales)[0];
}

// Makes elements of dW of sums over all positions.
template <OperandForm kForm>
class SumFinisher {
 public:
  __device__ __forceinline__ explicit SumFinisher(const WgradCall& call) {
    if constexpr (is_scaled(kForm)) {
      unscale_ = Unscale(call.scales->source, filter_scales(call.scales)[0]);
    } else if constexpr (count_components(kForm) > 1) {
      unscale_.first = kSplitUnscale;
    }
  }

  // The element before it is rounded. Sets is_wrong if the sum is not finite: such elements are
  // computed again by the definition, because MMAs also multiply gaps and borders, where 0 * Inf is
  // NaN, and split operands of large values overflow.
  __device__ __forceinline__ float unscale(float sum, bool& is_wrong) const {
    if constexpr (count_components(kForm) > 1 || is_scaled(kForm)) {
      sum = sum * unscale_.first * unscale_.second;
    }
    is_wrong |= !(fabsf(sum) <= kLargestFinite);
    return sum;
  }

  __device__ __forceinline__ element_t<kForm> finish(float sum, bool& is_wrong) const {
    return round_to<element_t<kForm>>(unscale(sum, is_wrong));
  }

 private:
  Unscale unscale_;
};

// Finishes sums in the reductions, which are compiled once for all forms of float32.
template <typename T>
class PartialSumFinisher {
 public:
  __device__ __forceinline__ PartialSumFinisher(const WgradCall& call, OperandForm form) {
    if (is_scaled(form)) {
      unscale_ = Unscale(call.scales->source, filter_scales(call.scales)[0]);
    } else if (count_components(form) > 1) {
      unscale_.first = kSplitUnscale;
    }
  }

  __device__ __forceinline__ float unscale(float sum, bool& is_wrong) const {
    if constexpr (sizeof(T) == 4) sum = sum * unscale_.first * unscale_.second;
    is_wrong |= !(fabsf(sum) <= kLargestFinite);
    return sum;
  }

  __device__ __forceinline__ T finish(float sum, bool& is_wrong) const {
    return round_to<T>(unscale(sum, is_wrong));
  }

 private:
  Unscale unscale_;
};

// One element of dW.
struct WgradElement {
  int filter, channel, r, s;  // channel: of all groups
  int own_channel;            // of the group

  // column: of a packed row.
  __device__ __forceinline__ WgradElement(const WgradGeometry& g, int of_filter, int column,
                                          int tap)
      : filter(of_filter), channel(column), r(tap), s(0) {
    if (g.folds_columns) {
      s = column;
      channel = g.by_group_channels.split(s);
    } else {
      s = g.by_kernel_columns.split(r);
    }
    own_channel = channel - g.by_group_filters.divide(filter) * g.group_channels;
  }

  __device__ __forceinline__ int64_t offset(const WgradGeometry& g) const {
    return filter * g.w_strides.n + own_channel * g.w_strides.c + r * g.w_strides.h +
           s * g.w_strides.w;
  }

  // This thread's share of the definition's sum: every step-th output pixel from `first` on.
  template <typename T>
  __device__ double sum_pixels(const WgradGeometry& g, const WgradCall& call, int first,
                               int step) const {
    const T* const x = static_cast<const T*>(call.x) + channel * g.x_strides.c;
    const T* const y = static_cast<const T*>(call.y) + filter * g.y_strides.c;
    const int pixels = g.images * g.out_height * g.out_width;  // no more than positions
    double sum = 0;
    for (int pixel = first; pixel < pixels; pixel += step) {
      const int line = pixel / g.out_width, n = line / g.out_height;
      const int q = pixel - line * g.out_width;
      const int p = line - n * g.out_height;
      const int row = p * g.stride_h + r * g.dilation_h - g.pad_top;
      const int column = q * g.stride_w + s * g.dilation_w - g.pad_left;
      if (row < 0 || row >= g.height || column < 0 || column >= g.width) continue;
      const T input = x[n * g.x_strides.n + row * g.x_strides.h + column * g.x_strides.w];
      const T gradient = y[n * g.y_strides.n + p * g.y_strides.h + q * g.y_strides.w];
      sum += double{to_accumulate(input)} * double{to_accumulate(gradient)};
    }
    return sum;
  }

  // Computes the element by the definition. The block's first `threads` threads call it, all that
  // have not returned. shares: a value for each of them, in shared memory.
  template <typename T>
  __device__ void recompute(const WgradGeometry& g, const WgradCall& call, double* shares,
                            int threads) const {
    const int thread = static_cast<int>(threadIdx.x);
    shares[thread] = sum_pixels<T>(g, call, thread, threads);
    __syncthreads();
    if (thread == 0) {
      double total = 0;
      for (int j = 0; j < threads; ++j) total += shares[j];
      static_cast<T*>(call.w)[offset(g)] = round_to<T>(static_cast<float>(total));
    }
    __syncthreads();
  }
};

}  // namespace convx
