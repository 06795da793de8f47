// The numbers the cost model of cuda_depthwise rests on: instruction counts read off the compiled
// kernels, and an H200's rates. Plain host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/device_caps.h"
#include "engines/cuda_depthwise/strip_shapes.h"

namespace convx {

constexpr double kDepthwiseLaunchUs = 4;
constexpr double kDepthwiseBytesPerUs = 3.6e6;        // of 4.25e6 a copy reaches
constexpr double kDepthwiseExcessBytesPerUs = 8.0e6;  // what neighbouring tiles read again, from L2
constexpr double kDepthwiseReferenceSms = 132;
constexpr double kDepthwiseCyclesPerUs = 1750;
constexpr double kDepthwiseIssuePerCycle = 3.2;  // warp instructions, of 4
constexpr double kDepthwiseWarpIssue = 0.5;      // what one warp can contribute to that
constexpr double kDepthwiseBlockIssue = 1000;    // beginning and end, of all warps
constexpr double kDepthwiseUnitIssue = 12;       // of a warp that copies 32 units
constexpr double kDepthwiseChunkIssue = 20;      // of a warp that writes 32 chunks of 16 bytes
constexpr double kDepthwiseCellIssue = 130;      // finding a cell and its operands
constexpr double kDepthwiseConvertIssue = 4;     // four 16-bit values to float32
constexpr double kDepthwiseResultIssue = 8;      // one result on its way out
constexpr double kDepthwiseWeightIssue = 40;     // of a warp that brings in 32 weights

// The strip kernel: instructions of a warp beside its products, and of memory's copy bandwidth what
// threads reach that each walk down a plane.
constexpr double kStripSetupIssue = 250;       // finding the strip, weights, first loads
constexpr double kPixelStripSetupIssue = 350;  // the same over pixels, of four filters
constexpr double kStripStepIssue = 8;          // sums move up, one store
constexpr double kStripRowIssue = 8;           // a source row's address
constexpr double kStripLoadIssue = 4;          // a load, zeros where it is outside
constexpr double kStripSumIssue = 12;          // adding up a weight's gradient over a block
constexpr double kPixelGradStepIssue = 45;     // a step of a weight gradient over pixels; reckoned
constexpr double kStripShiftIssue = 55;        // storing a row that begins anywhere
constexpr double kStripBytesPerUs = 3.6e6;
constexpr double kStripSecondPassUs = 4;  // adding up the parts of a weight gradient
constexpr double kStripLatencyUs = 0.8;   // of a load while the memory is busy
constexpr double kStripNarrowLoad = 0.1;  // more time for loads of 8 bytes; three times that for 4
constexpr double kStripTail = 0.35;       // of a wave of blocks: the last one is not full
constexpr double kStripMemoryTail = 0.1;  // likewise where bytes decide

// What the blocks of a launch do. Counts are of one block.
struct DepthwiseWork {
  double blocks;
  double issue;       // warp instructions
  double wavefronts;  // cycles of shared memory
  double busy_warps;  // that have something to multiply
  double staged_bytes, result_bytes;
  double least_bytes;  // of the whole problem, each byte once
  int64_t shared_bytes;
  int most_blocks;  // on a multiprocessor, by registers
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
  // Blocks that run side by side hide each other's waiting; those of the first and of the last
  // round do so less.
  const double rounds =
      std::ceil(per_sm) / per_sm * (1 + 0.5 * std::min(resident, per_sm) / per_sm);
  const double alone = 1 + 0.5 / std::min(resident, per_sm);
  return kDepthwiseLaunchUs + std::max(compute, memory) * rounds * alone;
}

// Instructions of a step of a strip.
inline double count_strip_issue(const StripShape& shape, int columns, int64_t element_bytes) {
  const StripReads reads(shape, element_bytes, columns);
  const double convert = element_bytes == 2 ? reads.elements() : 0;
  return shape.row_taps * shape.column_taps * columns + kStripStepIssue + columns +
         shape.stride * (convert + kStripLoadIssue * reads.loads() + kStripRowIssue);
}

// What the blocks of a strip kernel do.
struct StripWork {
  double blocks;
  double resident;    // blocks on a multiprocessor, by registers
  double warp_issue;  // instructions of a warp
  double warps = 4;   // of a block
  double waits;       // loads that a thread waits for, one after the other
  double moved_bytes, least_bytes;
  double load_bytes;  // of one load
};

inline double predict_strips_us(const StripWork& work, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double per_sm = std::max(1.0, work.blocks / sms);
  const double rate = std::min(kDepthwiseIssuePerCycle,
                               kDepthwiseWarpIssue * std::min(work.resident, per_sm) * work.warps);
  const double compute = per_sm * work.warps * work.warp_issue / rate / kDepthwiseCyclesPerUs;
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
