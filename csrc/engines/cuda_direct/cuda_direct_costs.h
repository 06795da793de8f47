// The numbers the cost model of cuda_direct rests on, fitted to an H200 in November 2026 over the
// 23 shapes of the benchmark in float32: most predictions are within 20% of the measured time.
#pragma once

#include "core/device_caps.h"

namespace convx {

// One multiprocessor issues four warp instructions a cycle.
constexpr double kDirectIssuePerCycle = 4;
constexpr double kDirectCyclesPerUs = 1580;   // 1.98 GHz, of which 80% of the cycles issue
constexpr double kDirectBytesPerUs = 3.4e6;   // of 4.25e6 a copy reaches
constexpr double kDirectLaunchUs = 5;         // launches, packing the weights
constexpr double kDirectLoadIssue = 1.5;      // a 16-byte shared load, in multiply-adds
constexpr double kDirectStageIssue = 5;       // staging one element or 16 bytes of weights
constexpr double kDirectPixelIssue = 100;     // the same of 16 bytes apart from their neighbours
constexpr double kDirectChunkIssue = 120;     // per chunk: barriers and bookkeeping
constexpr double kDirectEntryIssue = 8;       // reading a position from the table
constexpr double kDirectPositionIssue = 80;   // finding it
constexpr double kDirectRowIssue = 12;        // loop overhead per row of taps
constexpr double kDirectBlockIssue = 1600;    // prologue and waiting for the first stage
constexpr double kDirectStoreIssue = 3;       // per result
constexpr double kWideSlowdown = 1.5;         // its loads hold up the multiplications
constexpr double kNarrowSlowdown = 2;         // waits for L1
constexpr double kWeightGradGatherIssue = 9;  // staging one element of x or y
constexpr double kNarrowTapIssue = 8;         // reading one x value straight from memory
constexpr double kDirectBusyWarps = 12;       // per multiprocessor, to hide latency
constexpr double kDirectWorthPackingUs = 12;  // a launch less matters more than packed weights

// float64 multiply-adds take two cycles on the data-centre parts and 32 to 64 elsewhere.
inline double float64_penalty(const DeviceCaps& caps) {
  const bool full_rate =
      (caps.compute_major == 8 || caps.compute_major == 9 || caps.compute_major == 10) &&
      caps.compute_minor == 0;
  return full_rate ? 2.0 : 32.0;
}

}  // namespace convx
