// Operands of the tensor cores: device types of each operand format (tensor_math.h), float32 values
// split into components, and storage types as operands of mma.sync.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/convert.cuh"
#include "device/mma.cuh"
#include "planning/tensor_math.h"

namespace convx {

// Element: how tensors store values. Operand: what the tensor cores multiply, one of the value's
// components.
template <TensorMath kMath>
struct TensorTypes {
  using Element =
      std::conditional_t<kMath == TensorMath::kBFloat16, __nv_bfloat16,
                         std::conditional_t<kMath == TensorMath::kFloat16, __half, float>>;
  using Operand = std::conditional_t<
      kMath == TensorMath::kTf32, Tf32,
      std::conditional_t<kMath == TensorMath::kBFloat16 || kMath == TensorMath::kIeee,
                         __nv_bfloat16, __half>>;
};

// float32 values are multiplied by this before they are split into bfloat16 components, so that no
// component of the smallest values underflows. Values and sums that become infinite or NaN because
// of it are recomputed in float32 when they are stored.
inline constexpr float kSplitScale = 0x1p24f;
inline constexpr float kSplitUnscale = 0x1p-48f;  // undoes the scale of a product

// kSplitScale * value = part[0] + part[1] + part[2] exactly; the three bfloat16 components have 3 x
// 8 significant bits.
struct SplitPair {
  uint32_t part[3];

  __device__ __forceinline__ SplitPair(float first, float second) {
    first *= kSplitScale;
    second *= kSplitScale;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      part[i] = pack_bfloat16(first, second);
      first -= __uint_as_float(part[i] << 16);
      second -= __uint_as_float(part[i] & 0xffff0000u);
    }
  }
};

// value = part[0] + part[1] / kHalfLowScale, with a relative error of 2^-22; both are float16. The
// low component is scaled up to the size of the high one, so that it is as far from float16's
// smallest numbers.
inline constexpr float kHalfLowScale = 0x1p11f;

struct HalfPair {
  uint32_t part[2];

  __device__ __forceinline__ HalfPair(float first, float second) {
    part[0] = pack_float16(first, second);
    float first_high, second_high;
    unpack_float16(part[0], first_high, second_high);
    part[1] =
        pack_float16((first - first_high) * kHalfLowScale, (second - second_high) * kHalfLowScale);
  }
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

// The format whose packing kernels serve operands of this one. Packing kernels copy 16-bit values,
// by way of float32, which holds every bfloat16: read as bfloat16, float16 values keep their bits,
// and NaN stays NaN.
constexpr TensorMath packing_math(TensorMath math) {
  return math == TensorMath::kFloat16 ? TensorMath::kBFloat16 : math;
}

// float32, or the bits of either 16-bit type.
template <TensorMath kMath>
using SourceBits =
    std::conditional_t<sizeof(typename TensorTypes<kMath>::Element) == 4, float, uint16_t>;

// One 32-bit word of each component: one TF32 value, or two neighbouring values.
// Values for scaled fp16 are scaled already.
template <TensorMath kMath>
struct OperandWord {
  static constexpr int kChannels = 4 / operand_bytes(kMath);
  using Source = SourceBits<kMath>;
  uint32_t part[count_planes(kMath)];

  __device__ __forceinline__ explicit OperandWord(const Source (&values)[kChannels]) {
    if constexpr (kMath == TensorMath::kTf32) {
      part[0] = round_to_tf32(values[0]);
    } else if constexpr (sizeof(Source) == 4) {
      const OperandPair<kMath> pair(values[0], values[1]);
#pragma unroll
      for (int i = 0; i < count_planes(kMath); ++i) part[i] = pair.part[i];
    } else {
      part[0] = static_cast<uint32_t>(values[0]) | (static_cast<uint32_t>(values[1]) << 16);
    }
  }
};

// Storage types as operands of mma.sync.
template <typename T>
struct MmaOperand {
  using Type = T;
};
template <>
struct MmaOperand<float> {
  using Type = Tf32;
};

// sums += a * b (device/mma.cuh).
template <typename T>
__device__ __forceinline__ void multiply_operands(float* sums, const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1) {
  Mma<typename MmaOperand<T>::Type>::multiply(sums, a, b0, b1);
}

// Calls visit with a value of the device type of dtype: float (multiplied as TF32), half, bfloat16.
template <typename Visit>
void visit_mma_type(DType dtype, const Visit& visit) {
  if (dtype == DType::kFloat32) return visit(float{});
  if (dtype == DType::kFloat16) return visit(__half{});
  visit(__nv_bfloat16{});
}

// Rounds a float32 value to TF32; 16-bit values are operands as they are.
__device__ __forceinline__ float round_operand(float value) {
  return __uint_as_float(round_to_tf32(value));
}
template <typename T>
__device__ __forceinline__ T round_operand(T value) {
  return value;
}

// Rounds kCount neighbours in shared memory with one load and one store of up to 16 bytes.
template <int kCount>
__device__ __forceinline__ void round_unit(float* values) {
  struct __align__(4 * kCount) Unit {
    float of[kCount];
  };
  Unit unit = *reinterpret_cast<const Unit*>(values);
#pragma unroll
  for (float& value : unit.of) value = round_operand(value);
  *reinterpret_cast<Unit*>(values) = unit;
}

}  // namespace convx
