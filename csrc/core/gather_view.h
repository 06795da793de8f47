// Forward and input gradient as one operation.
//
// Both compute, for every target pixel, a sum over channels and taps of a source pixel times a
// weight:
//     target[i] = sum over taps t of  source[i * source_step + t.offset] * weight[t.tap]
// per axis. For the forward pass the target is y, the source is x, and one phase covers all of y.
// For the input gradient the target is x and the source is y: x positions that differ by a
// multiple of the stride see the same subset of taps, so each residue modulo the stride is a
// phase of its own, a dense stride-1 gather over just the taps that reach it. No scatter, no
// atomics, no multiplications by the zeros between strides.
//
// Source positions outside [0, source extent) count as zero.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arithmetic.h"
#include "core/problem.h"

namespace convx {

struct AxisTap {
  int64_t tap;     // r or s: index into the kernel
  int64_t offset;  // source position of target lattice index 0, may be negative
};

struct AxisPhase {
  int64_t target_start;  // target position of lattice index i is target_start + i * target_step
  int64_t target_step;
  int64_t count;  // lattice points; at least 1
  int64_t source_step;
  std::vector<AxisTap> taps;  // may be empty: those target pixels are zero
};

// What is read and what is written.
struct GatherTensors {
  int64_t source_h, source_w;
  int64_t target_h, target_w;
  int64_t source_channels;  // per group: the reduction runs over these and over the taps
  int64_t target_channels;  // per group
  Strides source_strides;
  Strides target_strides;
  // Distances in w, in elements, along the target's and the source's channel axis.
  int64_t weight_target_stride;
  int64_t weight_source_stride;
};

struct GatherView : GatherTensors {
  std::vector<AxisPhase> rows;     // phases along the height
  std::vector<AxisPhase> columns;  // phases along the width; every pair (row, column) is a piece
};

inline std::vector<AxisPhase> forward_phases(int64_t output, int64_t kernel, int64_t stride,
                                             int64_t pad_before, int64_t dilation) {
  AxisPhase phase{0, 1, output, stride, {}};
  for (int64_t r = 0; r < kernel; ++r) phase.taps.push_back({r, r * dilation - pad_before});
  return {phase};
}

// x position a receives from tap r of output p where a = p*stride - pad + r*dilation.
// With a = residue + i*stride that is p = i + (residue + pad - r*dilation) / stride, if exact.
inline std::vector<AxisPhase> input_grad_phases(int64_t input, int64_t kernel, int64_t stride,
                                                int64_t pad_before, int64_t dilation) {
  std::vector<AxisPhase> phases;
  for (int64_t residue = 0; residue < stride && residue < input; ++residue) {
    AxisPhase phase{residue, stride, (input - residue + stride - 1) / stride, 1, {}};
    for (int64_t r = 0; r < kernel; ++r) {
      const int64_t distance = residue + pad_before - r * dilation;
      if (floor_mod(distance, stride) == 0) phase.taps.push_back({r, distance / stride});
    }
    phases.push_back(phase);
  }
  return phases;
}

// These for Pass::kForward and Pass::kInputGrad.
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

}  // namespace convx
