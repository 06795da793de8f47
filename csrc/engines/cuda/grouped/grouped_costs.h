// Constants of cuda_grouped's cost model: warp instructions counted in the compiled kernels, and
// the rates of an H200. They are not fitted to measured times. Plain host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/device_caps.h"

namespace convx {

constexpr double kGroupedLaunchUs = 4;
constexpr double kGroupedBytesPerUs = 3.6e6;        // a plain copy reaches 4.25e6
constexpr double kGroupedExcessBytesPerUs = 8.0e6;  // halo of tiles, read again from L2
constexpr double kGroupedReferenceSms = 132;
constexpr double kGroupedCyclesPerUs = 1750;
constexpr double kGroupedIssuePerCycle = 3.2;   // warp instructions; the peak is 4
constexpr double kGroupedWarpIssue = 0.28;      // the most that one warp contributes to that
constexpr double kGroupedBlockIssue = 450;      // locating block, unit and cell
constexpr double kGroupedStepIssue = 90;        // waiting, and locating the next copies
constexpr double kGroupedImageIssue = 80;       // initializing the accumulators with the bias
constexpr double kGroupedChannelIssue = 8;      // loop overhead
constexpr double kGroupedRunIssue = 40;         // start of a run of taps (kSegments)
constexpr double kGroupedTapRowIssue = 5;       // loop overhead of a run, per row of taps
constexpr double kGroupedStoreIssue = 6;        // one vector store
constexpr double kGroupedNarrowStoreBytes = 2;  // traffic factor of stores below a sector
constexpr double kGroupedUnitIssue = 6;         // copying one unit of one channel
constexpr double kGroupedElementIssue = 10;     // the same through registers
constexpr double kGroupedLineIssue = 14;        // advancing to a line, for all channels of a chunk
constexpr double kGroupedWeightRowIssue = 100;  // locating one row of a filter's taps
constexpr double kGroupedWeightIssue = 12;      // staging one of its weights
// With one buffer a block waits for its own copies, and other blocks have to fill that time.
constexpr double kGroupedOneBufferCost = 0.5;  // divided by the resident blocks

constexpr double kGroupedOverlapLoss = 0.15;  // fraction of the shorter of copies and arithmetic

// Constants of the tensor-core kernel, counted in its instructions, not fitted.
constexpr double kGroupedMmaUnitIssue = 42;      // locating and reading a unit of four channels
constexpr double kGroupedMmaPixelIssue = 3;      // interleaving the channels of one pixel
constexpr double kGroupedMmaFragmentIssue = 70;  // staging one word of weights
constexpr double kGroupedMmaClearIssue = 2;      // clearing 16 bytes of a line
constexpr double kGroupedMmaJobIssue = 60;       // locating the cells of a warp
constexpr double kGroupedMmaStepIssue = 8;       // loading the weights and offsets of a step
constexpr double kGroupedMmaIssue = 3;           // one MMA with its pixel's address and load
constexpr double kGroupedMmaPutIssue = 18;       // outputs of a cell to shared memory
constexpr double kGroupedMmaChunkIssue = 40;     // 16 bytes of them to the target
constexpr double kGroupedMmaCycles = 2.6;        // shared memory or tensor core, per MMA

// The work of a launch. Counts are per block unless stated otherwise.
struct GroupedWork {
  double blocks;
  double issue;       // warp instructions
  double wavefronts;  // shared-memory cycles
  double busy_warps;  // warps that have a cell to compute
  double moved_bytes;
  double steps;        // pipeline steps that follow each other
  double least_bytes;  // of the whole problem, counting each byte once
  int64_t resident;    // blocks per multiprocessor
  bool overlaps;       // the block's copies overlap with its own arithmetic
};

inline double predict_grouped_us(const GroupedWork& work, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double scale = sms / kGroupedReferenceSms;
  const double per_sm = std::max(1.0, work.blocks / sms);
  const double resident = std::min(static_cast<double>(work.resident), per_sm);
  const double warps = resident * work.busy_warps;
  // Warps stay with one of the four schedulers, and the scheduler with the most warps ends last.
  const double share = warps / (std::ceil(warps / 4) * 4);
  const double rate = std::min(kGroupedIssuePerCycle * share, kGroupedWarpIssue * warps);
  const double compute =
      per_sm * std::max(work.issue / rate, work.wavefronts) / kGroupedCyclesPerUs;
  const double excess = std::max(0.0, work.blocks * work.moved_bytes - work.least_bytes);
  const double memory =
      (work.least_bytes / kGroupedBytesPerUs + excess / kGroupedExcessBytesPerUs) / scale /
      std::min(1.0, work.blocks / sms);
  // The first copies and the last arithmetic on a multiprocessor overlap with nothing.
  const double rounds = work.steps * std::ceil(per_sm / resident);
  const double busy = std::max(compute, memory) +
                      std::min(compute, memory) * std::min(1.0, kGroupedOverlapLoss + 1 / rounds);
  const double uneven = std::ceil(per_sm) / per_sm;
  const double alone = work.overlaps ? 1 : 1 + kGroupedOneBufferCost / resident;
  return kGroupedLaunchUs + busy * uneven * alone;
}

}  // namespace convx
