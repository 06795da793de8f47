// The forms in which operands reach the tensor cores: as stored, or split into 16-bit components.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

enum class OperandForm : uint8_t {
  kBFloat16,      // as stored
  kFloat16,       // as stored
  kScaledFp16,    // float32 times a power of two, rounded to float16: TF32's 11 bits
  kScaledFp16x2,  // the same as the sum of two float16: 22 bits, 3 MMAs a product
  kBf16x2,        // float32 as the sum of two bfloat16: 16 bits in float32's range, 3 MMAs
  kBf16x3,        // float32 as the sum of three bfloat16: 24 bits in float32's range, 6 MMAs
  kTf32,          // float32 that TMA rounds to TF32, for 1x1 layers (row_boxes_kernel.cuh)
};

// wgrad_16bit.cu, wgrad_scaled.cu and wgrad_split.cu compile the launches of all of them.
inline constexpr OperandForm kOperandForms[] = {
    OperandForm::kBFloat16,     OperandForm::kFloat16, OperandForm::kScaledFp16,
    OperandForm::kScaledFp16x2, OperandForm::kBf16x2,  OperandForm::kBf16x3,
    OperandForm::kTf32};

inline const char* name_of(OperandForm form) {
  constexpr const char* kNames[] = {
      "bfloat16",     "float16",      "scaled fp16", "2 x scaled fp16",
      "2 x bfloat16", "3 x bfloat16", "TF32"};
  return kNames[static_cast<int>(form)];
}

constexpr int count_components(OperandForm form) {
  if (form == OperandForm::kBf16x3) return 3;
  return form == OperandForm::kScaledFp16x2 || form == OperandForm::kBf16x2 ? 2 : 1;
}

// MMAs that one product of split operands takes; those of the smallest components are left out.
constexpr int count_mmas(int components) { return components * (components + 1) / 2; }

constexpr bool is_scaled(OperandForm form) {
  return form == OperandForm::kScaledFp16 || form == OperandForm::kScaledFp16x2;
}

// Whether accumulators are emptied into a second set of registers after every stage: forms of
// strict float32, which must not show that the tensor cores truncate. TF32 tolerates chains of
// MMAs.
constexpr bool promotes_sums(OperandForm form) {
  return form == OperandForm::kScaledFp16x2 || form == OperandForm::kBf16x3;
}

// Whether the row kernel (rows_kernel.cuh) multiplies operands of this form.
constexpr bool has_row_kernel(OperandForm form) {
  return (count_components(form) == 1 && form != OperandForm::kTf32) ||
         form == OperandForm::kScaledFp16x2;
}

// The form whose packing kernel serves operands of this one: 16-bit values are packed as they are.
constexpr OperandForm packing_form(OperandForm form) {
  return form == OperandForm::kFloat16 ? OperandForm::kBFloat16 : form;
}

// Whether TMA makes the form of a tensor in memory (row_boxes_kernel.cuh).
constexpr bool has_row_boxes(OperandForm form) {
  return count_components(form) == 1 && !is_scaled(form);
}

// Whether blocks of the MMA kernel can make the form of float32 tensors (wgrad_convert.cuh).
constexpr bool can_convert(OperandForm form) {
  return form == OperandForm::kScaledFp16 || form == OperandForm::kBf16x2 ||
         form == OperandForm::kBf16x3;
}

// The form that represents every value of the problem's dtype at the problem's precision.
inline OperandForm exact_form(const ConvProblem& problem) {
  if (problem.dtype == DType::kBFloat16) return OperandForm::kBFloat16;
  if (problem.dtype == DType::kFloat16) return OperandForm::kFloat16;
  return problem.precision == Precision::kTf32 ? OperandForm::kBf16x2 : OperandForm::kBf16x3;
}

// The faster form that float32 values of moderate range take.
inline OperandForm scaled_form(const ConvProblem& problem) {
  return problem.precision == Precision::kTf32 ? OperandForm::kScaledFp16
                                               : OperandForm::kScaledFp16x2;
}

}  // namespace convx
