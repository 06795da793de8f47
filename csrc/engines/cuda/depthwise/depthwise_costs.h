// Constants of cuda_depthwise's cost model: instructions counted in the compiled kernels, and the
// rates of an H200. Plain host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/device_caps.h"
#include "engines/cuda/depthwise/strip_shapes.h"

namespace convx {

constexpr double kDepthwiseLaunchUs = 4;
constexpr double kDepthwiseBytesPerUs = 3.6e6;        // a plain copy reaches 4.25e6
constexpr double kDepthwiseExcessBytesPerUs = 8.0e6;  // halo of tiles, read again from L2
constexpr double kDepthwiseReferenceSms = 132;
constexpr double kDepthwiseCyclesPerUs = 1750;
constexpr double kDepthwiseIssuePerCycle = 3.2;  // warp instructions; the peak is 4
constexpr double kDepthwiseWarpIssue = 0.5;      // the most that one warp contributes to that
constexpr double kDepthwiseBlockIssue = 1000;    // prologue and epilogue, all warps
constexpr double kDepthwiseUnitIssue = 12;       // a warp copies 32 units
constexpr double kDepthwiseChunkIssue = 20;      // a warp stores 32 chunks of 16 bytes
constexpr double kDepthwiseCellIssue = 130;      // locating a cell and its operands
constexpr double kDepthwiseConvertIssue = 4;     // four 16-bit values to float32
constexpr double kDepthwiseResultIssue = 8;      // storing one output through shared memory
constexpr double kDepthwiseWeightIssue = 40;     // a warp stages 32 weights

// Constants of the strip kernels: warp instructions beside the multiply-adds, and the bandwidth
// that threads reach if each goes down a plane.
constexpr double kStripSetupIssue = 250;       // locating the strip, weights, first loads
constexpr double kPhaseStripSetupIssue = 350;  // the same for strided input gradients
constexpr double kStripWeightIssue = 20;       // copying one weight to shared memory
constexpr double kStripKeptWeightIssue = 2.8;  // loading one weight into registers, as vectors
constexpr double kStripStepIssue = 8;          // shifting the accumulators, one store
constexpr double kStripRowIssue = 8;           // address of a source row
constexpr double kStripLoadIssue = 4;          // one predicated load
constexpr double kStripSumIssue = 12;          // reducing one weight's gradient over a block
constexpr double kPixelGradStepIssue = 45;     // one step of a tiled weight gradient; estimated
constexpr double kStripShiftIssue = 55;        // storing a row with any alignment
constexpr double kStripBytesPerUs = 3.6e6;
constexpr double kBoxBytesPerUs = 4.2e6;  // only read, by TMA; estimated
constexpr double kStripSecondPassUs = 4;  // launch of the kernel that adds partial sums
// The launch that adds partial sums behind channels_last weight gradients, fitted to 3x3 to 7x7
// layers (H200, 2026-11-18): 1.6 to 2.0 us with one image, 2.3 to 3.0 us with 32. This is the mean.
constexpr double kPixelGradSecondPassUs = 2.2;
constexpr double kStripLatencyUs = 0.8;   // load latency while memory is busy
constexpr double kStripNarrowLoad = 0.1;  // extra time of 8-byte loads; 0.3 for 4-byte loads
constexpr double kStripTail = 0.35;       // cost of the last, partial wave, as a share of a wave
constexpr double kStripMemoryTail = 0.1;  // the same if memory is the limit

// The work of a launch. Counts are per block unless stated otherwise.
struct DepthwiseWork {
  double blocks;
  double issue;       // warp instructions
  double wavefronts;  // shared-memory cycles
  double busy_warps;  // warps that have a cell to compute
  double staged_bytes, result_bytes;
  double least_bytes;  // of the whole problem, counting each byte once
  int64_t shared_bytes;
  int most_blocks;  // per multiprocessor, limited by registers
};

inline double predict_depthwise_us(const DepthwiseWork& work, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double scale = sms / kDepthwiseReferenceSms;
  const auto resident = static_cast<double>(
      std::clamp<int64_t>(caps.count_blocks_by_shared(work.shared_bytes), 1, work.most_blocks));
  const double per_sm = std::max(1.0, work.blocks / sms);
  const double warps = std::min(resident, per_sm) * std::min(work.busy_warps, 4.0);
  const double rate = std::min(kDepthwiseIssuePerCycle, kDepthwiseWarpIssue * warps);
  const double cycles = std::max((work.issue + kDepthwiseBlockIssue) / rate, work.wavefronts);
  const double compute = per_sm * cycles / kDepthwiseCyclesPerUs;
  const double moved = work.blocks * (work.staged_bytes + work.result_bytes);
  const double memory = (work.least_bytes / kDepthwiseBytesPerUs +
                         std::max(0.0, moved - work.least_bytes) / kDepthwiseExcessBytesPerUs) /
                        scale / std::min(1.0, work.blocks / sms);
  // Resident blocks hide each other's latency. Those of the first and the last wave do so less.
  const double rounds =
      std::ceil(per_sm) / per_sm * (1 + 0.5 * std::min(resident, per_sm) / per_sm);
  const double alone = 1 + 0.5 / std::min(resident, per_sm);
  return kDepthwiseLaunchUs + std::max(compute, memory) * rounds * alone;
}

// Warp instructions of one step of a strip.
inline double count_strip_issue(const StripShape& shape, int columns, int64_t element_bytes) {
  const StripReads reads(shape, element_bytes, columns);
  const double convert = element_bytes == 2 ? reads.elements() : 0;
  return shape.row_taps * shape.column_taps * columns + kStripStepIssue + columns +
         shape.stride * (convert + kStripLoadIssue * reads.loads() + kStripRowIssue);
}

// The work of a strip kernel's launch.
struct StripWork {
  double blocks;
  double resident;        // blocks per multiprocessor, limited by registers
  double warp_issue;      // instructions per warp
  double warps = 4;       // per block
  double wavefronts = 0;  // cycles of the load-store unit per warp
  double waits;           // dependent loads of a thread
  double moved_bytes, least_bytes;
  double load_bytes;  // bytes per load
};

inline double predict_strips_us(const StripWork& work, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double per_sm = std::max(1.0, work.blocks / sms);
  const double rate = std::min(kDepthwiseIssuePerCycle,
                               kDepthwiseWarpIssue * std::min(work.resident, per_sm) * work.warps);
  const double cycles = per_sm * work.warps * std::max(work.warp_issue / rate, work.wavefronts);
  const double compute = cycles / kDepthwiseCyclesPerUs;
  const double narrow = 1 + kStripNarrowLoad * (16 / work.load_bytes - 1);
  const double memory =
      (work.least_bytes / kStripBytesPerUs * narrow +
       std::max(0.0, work.moved_bytes - work.least_bytes) / kDepthwiseExcessBytesPerUs) *
      kDepthwiseReferenceSms / sms;
  const double latency = std::max(1.0, per_sm / work.resident) * work.waits * kStripLatencyUs;
  const double wave = std::min(1.0, work.resident / per_sm);
  return kDepthwiseLaunchUs + std::max({compute * (1 + kStripTail * wave),
                                        memory * (1 + kStripMemoryTail * wave), latency});
}

}  // namespace convx
