// Forward and input gradient as one operation.
//
// Both are a gather: every target pixel is a sum, over channels and taps, of a source pixel times a
// weight. Along each axis
//     target[i] = sum over taps t of  source[i * source_step + t.offset] * weight[t.tap]
// where source positions outside [0, source extent) count as zero.
//
//                   source (read)   target (written)   phases along an axis
//   forward         x               y                  one
//   input gradient  y               x                  one for each residue modulo the stride
//
// In the input gradient, x positions that differ by a multiple of the stride see the same taps.
// They form a phase: a dense gather with step 1 over the taps that reach it. So there is no
// scatter, no atomic, and no multiplication by the zeros between strides.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arithmetic.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

struct AxisTap {
  int64_t tap;     // r or s: the index into the filter kernel
  int64_t offset;  // source position that lattice index 0 reads; may be negative
};

struct AxisPhase {
  // The phase's target pixels are lattice points i = 0 ... count - 1, at target position
  // target_start + i * target_step.
  int64_t target_start;
  int64_t target_step;
  int64_t count;  // at least 1
  int64_t source_step;
  std::vector<AxisTap> taps;  // if empty, the phase's target pixels are zero
};

// The tensors of a gather: their sizes and memory strides.
struct GatherTensors {
  int64_t source_h, source_w;
  int64_t target_h, target_w;
  int64_t source_channels;  // per group: the reduction runs over these and over the taps
  int64_t target_channels;  // per group
  Strides source_strides;
  Strides target_strides;
  // Strides of w, in elements, along the channel axis of the target and of the source.
  int64_t weight_target_stride;
  int64_t weight_source_stride;
};

struct GatherView : GatherTensors {
  // Phases along the height and along the width; each pair of them is computed.
  std::vector<AxisPhase> rows;
  std::vector<AxisPhase> columns;
};

inline std::vector<AxisPhase> forward_phases(int64_t output, int64_t kernel, int64_t stride,
                                             int64_t pad_before, int64_t dilation) {
  std::vector<AxisPhase> phases;
  AxisPhase& phase = phases.emplace_back(AxisPhase{0, 1, output, stride, {}});
  phase.taps.reserve(static_cast<size_t>(kernel));
  for (int64_t r = 0; r < kernel; ++r) phase.taps.push_back({r, r * dilation - pad_before});
  return phases;
}

// Tap r of output p contributes to x position a where a = p*stride - pad + r*dilation. With
// a = residue + i*stride that is p = i + (residue + pad - r*dilation) / stride, if it divides.
inline std::vector<AxisPhase> input_grad_phases(int64_t input, int64_t kernel, int64_t stride,
                                                int64_t pad_before, int64_t dilation) {
  std::vector<AxisPhase> phases;
  for (int64_t residue = 0; residue < stride && residue < input; ++residue) {
    AxisPhase& phase = phases.emplace_back(
        AxisPhase{residue, stride, (input - residue + stride - 1) / stride, 1, {}});
    for (int64_t r = 0; r < kernel; ++r) {
      const int64_t distance = residue + pad_before - r * dilation;
      if (floor_mod(distance, stride) == 0) phase.taps.push_back({r, distance / stride});
    }
  }
  return phases;
}

// Pairs of a target position and a tap along an axis of an input gradient.
inline int64_t count_input_grad_pairs(int64_t input, int64_t kernel, int64_t stride,
                                      int64_t pad_before, int64_t dilation) {
  int64_t pairs = 0;
  for (int64_t r = 0; r < kernel; ++r) {
    const int64_t residue = floor_mod(r * dilation - pad_before, stride);
    if (residue < input) pairs += ceil_div(input - residue, stride);
  }
  return pairs;
}

// Multiply-adds of a forward pass or an input gradient by phases, with those of padding zeros.
inline double count_gather_products(const ConvProblem& p) {
  const bool forward = p.pass == Pass::kForward;
  const int64_t rows =
      forward ? p.P * p.R : count_input_grad_pairs(p.H, p.R, p.stride.h, p.pad.top, p.dilation.h);
  const int64_t columns =
      forward ? p.Q * p.S : count_input_grad_pairs(p.W, p.S, p.stride.w, p.pad.left, p.dilation.w);
  return static_cast<double>(rows * columns) * static_cast<double>(p.N * p.K) *
         static_cast<double>(p.channels_per_group());
}

// For Pass::kForward and Pass::kInputGrad.
inline GatherTensors make_gather_tensors(const ConvProblem& p) {
  if (p.pass == Pass::kForward) {
    return {p.H,
            p.W,
            p.P,
            p.Q,
            p.channels_per_group(),
            p.filters_per_group(),
            p.x_strides,
            p.y_strides,
            p.w_strides.n,
            p.w_strides.c};
  }
  return {p.P,
          p.Q,
          p.H,
          p.W,
          p.filters_per_group(),
          p.channels_per_group(),
          p.y_strides,
          p.x_strides,
          p.w_strides.c,
          p.w_strides.n};
}

inline GatherView make_gather_view(const ConvProblem& p) {
  const GatherTensors tensors = make_gather_tensors(p);
  if (p.pass == Pass::kForward) {
    return {tensors, forward_phases(p.P, p.R, p.stride.h, p.pad.top, p.dilation.h),
            forward_phases(p.Q, p.S, p.stride.w, p.pad.left, p.dilation.w)};
  }
  return {tensors, input_grad_phases(p.H, p.R, p.stride.h, p.pad.top, p.dilation.h),
          input_grad_phases(p.W, p.S, p.stride.w, p.pad.left, p.dilation.w)};
}

inline float find_lowest(const ConvProblem& problem) {
  return find_lowest(problem.epilogue).value_or(kUnbounded);
}

// Assigns a call's buffers to source and target.
// Params: any kernel's parameters with source, weight, bias, lowest and target.
template <typename Params>
void set_gather_buffers(Params& params, const ConvProblem& problem, const Buffers& buffers) {
  const bool forward = problem.pass == Pass::kForward;
  params.source = forward ? buffers.x : buffers.y;
  params.weight = buffers.w;
  params.bias = forward && problem.epilogue.has_bias ? buffers.bias : nullptr;
  params.lowest = find_lowest(problem);
  params.target = forward ? buffers.y : buffers.x;
}

}  // namespace convx
