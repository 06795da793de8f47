// Device types and conversions for each operand format (tensor_math.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>

#include "device/convert.cuh"
#include "device/tensor_formats.cuh"
#include "device/wgmma.cuh"
#include "planning/tensor_math.h"
#include "planning/tensor_params.h"

namespace convx {

template <TensorMath>
struct TensorTypes;
template <>
struct TensorTypes<TensorMath::kTf32> {
  using Operand = Tf32;
  using Element = float;
};
template <>
struct TensorTypes<TensorMath::kIeee> {
  using Operand = __nv_bfloat16;
  using Element = float;
};
template <>
struct TensorTypes<TensorMath::kBFloat16> {
  using Operand = __nv_bfloat16;
  using Element = __nv_bfloat16;
};
template <>
struct TensorTypes<TensorMath::kFloat16> {
  using Operand = __half;
  using Element = __half;
};
template <>
struct TensorTypes<TensorMath::kHalfTf32> {
  using Operand = __half;
  using Element = float;
};
template <>
struct TensorTypes<TensorMath::kHalfIeee> {
  using Operand = __half;
  using Element = float;
};

// The 16-bit components of two values, packed into words. Values for scaled fp16 are scaled
// already.
template <TensorMath kMath>
struct OperandPair {
  uint32_t part[1];
  __device__ __forceinline__ OperandPair(float first, float second)
      : part{kMath == TensorMath::kBFloat16 ? pack_bfloat16(first, second)
                                            : pack_float16(first, second)} {}
};
template <>
struct OperandPair<TensorMath::kTf32>;  // does not exist: TF32 operands have 32 bits
template <>
struct OperandPair<TensorMath::kIeee> : SplitPair {
  using SplitPair::SplitPair;
};
template <>
struct OperandPair<TensorMath::kHalfIeee> : HalfPair {
  using HalfPair::HalfPair;
};

// 16 bytes of each component of consecutive values, as operands.
template <TensorMath kMath>
struct OperandWords {
  using Element = typename TensorTypes<kMath>::Element;
  static constexpr int kValues = 16 / operand_bytes(kMath);
  uint4 part[count_planes(kMath)];

  __device__ __forceinline__ explicit OperandWords(const float* v) {
    if constexpr (kMath == TensorMath::kTf32) {
      part[0] = make_uint4(round_to_tf32(v[0]), round_to_tf32(v[1]), round_to_tf32(v[2]),
                           round_to_tf32(v[3]));
    } else if constexpr (sizeof(Element) == 4) {
      const OperandPair<kMath> a(v[0], v[1]), b(v[2], v[3]), c(v[4], v[5]), d(v[6], v[7]);
#pragma unroll
      for (int i = 0; i < count_planes(kMath); ++i) {
        part[i] = make_uint4(a.part[i], b.part[i], c.part[i], d.part[i]);
      }
    } else {  // exact: the values were of this type
      union {
        uint4 words;
        Element elements[8];
      } all;
#pragma unroll
      for (int i = 0; i < 8; ++i) all.elements[i] = round_to<Element>(v[i]);
      part[0] = all.words;
    }
  }
};

// Whether an accumulator of split values must be recomputed: splitting an infinity gives NaN where
// float32 gives an infinity, and large values overflow early.
__device__ __forceinline__ bool is_spoilt(float sum) { return !(fabsf(sum) <= FLT_MAX); }

// An accumulator to be recomputed.
struct SpoiltSum {
  int group, filter;       // the filter within its group
  int image, row, column;  // target coordinates
  int first, last;         // channels of this split-K slice
  bool folded;             // first and last count channel * taps + tap
};

// Recomputes it in float32.
static __device__ __noinline__ float mend_sum(const TensorParams& p, const SpoiltSum& at) {
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

}  // namespace convx
