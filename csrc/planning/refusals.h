// Refusals that several CUDA engines share.
#pragma once

#include <algorithm>
#include <string>

#include "core/device_caps.h"
#include "core/problem.h"
#include "planning/gather_axis.h"

namespace convx {

// CUDA engines keep positions within an image, offsets between taps and GEMM sizes in 32 bits.
constexpr int64_t kMaxExtent = int64_t{1} << 29;

// Each function below returns an empty string, or the refusal.
inline std::string refuse_large_extents(const ConvProblem& p) {
  const int64_t reach_h = p.H + p.pad.top + p.pad.bottom;
  const int64_t reach_w = p.W + p.pad.left + p.pad.right;
  const bool large = std::max({reach_h, reach_w, p.N, p.C, p.K, p.stride.h, p.stride.w,
                               p.dilation.h, p.dilation.w}) > kMaxExtent;
  return large ? "an extent is above 2^29" : "";
}

// For engines that count the target pixels of all images in 32 bits.
constexpr int64_t kMaxPixels = int64_t{1} << 30;
inline std::string refuse_many_pixels(const ConvProblem& p) {
  const bool forward = p.pass == Pass::kForward;
  if (p.N * (forward ? p.P * p.Q : p.H * p.W) < kMaxPixels) return "";
  return std::string(forward ? "the output" : "the input") + " has 2^30 pixels or more";
}

// For engines that also keep the element offsets within an image in 32 bits.
inline std::string refuse_large_images(const ConvProblem& p) {
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  for (const Strides* s : {&p.x_strides, &p.y_strides}) {
    if (s->n >= kMaxPixels || s->c >= kMaxPixels) return "an image has 2^30 elements or more";
    if (s->h >= kMaxPixels / std::max(p.H, p.P) || s->w >= kMaxPixels / std::max(p.W, p.Q)) {
      return "a plane spans 2^30 elements or more";
    }
  }
  return "";
}

// For engines that run the phases of an input gradient one after the other; each phase takes a few
// launches.
constexpr int64_t kMaxPhases = 16;
inline std::string refuse_many_phases(const ConvProblem& p) {
  if (p.pass != Pass::kInputGrad) return "";
  const int64_t phases = std::min(p.stride.h, p.H) * std::min(p.stride.w, p.W);
  return phases > kMaxPhases ? "the stride has more than 16 phases" : "";
}

// For engines that use wgmma, in any pass.
inline std::string refuse_tensor_cores(const ConvProblem& p, const DeviceCaps& caps) {
  if (caps.compute_major != 9) return "it needs a GPU of compute capability 9.0";
  if (!caps.wgmma) return "this build has no code for sm_90a";
  if (p.dtype == DType::kFloat64) return "tensor cores here take no float64";
  return "";
}

// For engines that use mma.sync, in any pass.
inline std::string refuse_before_sm_80(const DeviceCaps& caps) {
  if (caps.compute_major < 8) return "it needs a GPU of compute capability 8.0 or later";
  if (caps.code_arch < 80) return "this build has no code of sm_80 or later for this GPU";
  return "";
}

// For engines that do not split float32 values, and so have no "ieee" precision.
inline std::string refuse_split_math(const ConvProblem& p) {
  if (size_of(p.dtype) == 2) return "";
  if (p.dtype == DType::kFloat32 && p.precision == Precision::kTf32) return "";
  return "it multiplies 16-bit types and TF32 only";
}

// For wgmma engines that compute forward passes and input gradients, phase by phase.
inline std::string refuse_wgmma_gather(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  return refuse_many_phases(p);
}

// For engines that cannot write zeros to the pixels of a phase without taps.
inline std::string refuse_unreached_pixels(const ConvProblem& p) {
  for (const GatherPhase& phase : make_gather_phases(p)) {
    if (phase.taps() == 0) return "no tap reaches some pixels of the input";
  }
  return "";
}

}  // namespace convx
