// Constants of cuda_direct's cost model, fitted to an H200 in November 2026 over the 23 float32
// shapes of the benchmark. Most predictions are within 20% of the measured time. Constants with
// another source say so.
#pragma once

#include "core/device_caps.h"

namespace convx {

// One multiprocessor issues four warp instructions a cycle.
constexpr double kDirectIssuePerCycle = 4;
constexpr double kDirectCyclesPerUs = 1580;  // 1.98 GHz, with 80% of the cycles issuing
constexpr double kDirectBytesPerUs = 3.4e6;  // a plain copy reaches 4.25e6
constexpr double kDirectLaunchUs = 5;        // launches, and packing the weights
constexpr double kDirectLoadIssue = 1.5;     // a 16-byte shared-memory load, in multiply-adds
constexpr double kDirectStageIssue = 5;      // staging one element, or 16 bytes of weights
constexpr double kDirectPixelIssue = 100;    // the same from a channels_last source
// Staging one 16-bit element of an NCHW source. cp.async copies at least 4 bytes, so such elements
// pass through registers, and a thread waits for its loads. Fitted to forward passes of 1, 3 and 8
// filters and to grouped 3x3 layers in bf16 (H200, November 2026).
constexpr double kDirectHalfStageIssue = 55;
constexpr double kDirectChunkIssue = 120;    // per chunk: barriers and bookkeeping
constexpr double kDirectEntryIssue = 8;      // reading a position from the table
constexpr double kDirectPositionIssue = 80;  // computing that position
constexpr double kDirectRowIssue = 12;       // loop overhead per row of taps
constexpr double kDirectBlockIssue = 1600;   // prologue and waiting for the first stage
constexpr double kDirectStoreIssue = 3;      // per output
// An output of a phase that stores only some columns of a row: a warp's stores touch more sectors,
// and the other phases write them again. Fitted to input gradients of grouped 3x3 layers of stride
// 2 at batch 32 (H200, November 2026).
constexpr double kDirectStridedStoreIssue = 35;
constexpr double kWideSlowdown = 1.5;         // loads delay the multiply-adds
constexpr double kNarrowSlowdown = 2;         // waits for L1
constexpr double kWeightGradGatherIssue = 9;  // staging one element of x or y
constexpr double kNarrowTapIssue = 8;         // loading one x value from global memory
// weight_grad_pixels.cu; estimated from its instructions and from kernels that only read.
constexpr double kPixelLoadIssue = 4;         // a load or a shuffle, of which one starts a cycle
constexpr double kPixelLocateIssue = 12;      // finding a pixel among dense ones
constexpr double kPixelWalkIssue = 40;        // finding any other pixel
constexpr double kPixelNearBytesPerUs = 6e6;  // tensors that stay in L2
constexpr double kPixelFarBytesPerUs = 4.2e6;
constexpr double kPixelIterationUs = 0.8;  // a block waits for the loads of one iteration
constexpr double kPixelLaunchUs = 8;       // both kernels
constexpr double kDirectBusyWarps = 12;    // per multiprocessor, to hide latency
// Warps that hide latency where no wave is full, so that nothing else runs meanwhile: with two to a
// scheduler, a warp of n1c3h224w224 k16 (3x3, stride 2) issues every 6 cycles (ncu, H200,
// 2026-11-19).
constexpr double kDirectLonelyWarps = 24;
constexpr double kDirectWorthPackingUs = 12;  // below this, packing costs more than it saves

// float64 multiply-adds take two cycles on the data-centre parts and 32 to 64 elsewhere.
inline double float64_penalty(const DeviceCaps& caps) {
  const bool full_rate =
      (caps.compute_major == 8 || caps.compute_major == 9 || caps.compute_major == 10) &&
      caps.compute_minor == 0;
  return full_rate ? 2.0 : 32.0;
}

// Staging one source value.
inline double find_stage_issue(bool channel_is_fastest, int64_t element_bytes) {
  if (channel_is_fastest) return kDirectPixelIssue;
  return element_bytes == 2 ? kDirectHalfStageIssue : kDirectStageIssue;
}

}  // namespace convx
