// The numbers the cost model of cuda_grouped rests on: instruction counts of a warp read off the
// compiled kernels, and an H200's rates. Not yet fitted to measured times. Plain host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/device_caps.h"

namespace convx {

constexpr double kGroupedLaunchUs = 4;
constexpr double kGroupedBytesPerUs = 3.6e6;        // of 4.25e6 a copy reaches
constexpr double kGroupedExcessBytesPerUs = 8.0e6;  // what neighbouring tiles read again, from L2
constexpr double kGroupedReferenceSms = 132;
constexpr double kGroupedCyclesPerUs = 1750;
constexpr double kGroupedIssuePerCycle = 3.2;   // warp instructions, of 4
constexpr double kGroupedWarpIssue = 0.28;      // what one warp can contribute to that
constexpr double kGroupedBlockIssue = 450;      // finding block, unit and cell
constexpr double kGroupedStepIssue = 90;        // waiting, and finding what to copy next
constexpr double kGroupedImageIssue = 80;       // sums begin with the bias
constexpr double kGroupedChannelIssue = 8;      // its loop
constexpr double kGroupedRunIssue = 40;         // beginning a run of taps of any kernel
constexpr double kGroupedTapRowIssue = 5;       // its loop, per row of taps
constexpr double kGroupedStoreIssue = 6;        // a row's results that are stored at once
constexpr double kGroupedNarrowStoreBytes = 2;  // what pieces of sectors cost
constexpr double kGroupedUnitIssue = 6;         // copying a unit of a channel
constexpr double kGroupedElementIssue = 10;     // the same through registers
constexpr double kGroupedLineIssue = 14;        // going to a line, of all channels of a chunk
constexpr double kGroupedWeightRowIssue = 100;  // finding a row of a filter's taps
constexpr double kGroupedWeightIssue = 12;      // bringing in one of them
// With one buffer a block waits for its own copies, and others have to fill the time.
constexpr double kGroupedOneBufferCost = 0.5;  // over the blocks on a multiprocessor

constexpr double kGroupedOverlapLoss = 0.15;  // of the shorter of copies and products

// The kernel for tensor cores, reckoned from its instructions, not fitted.
constexpr double kGroupedMmaUnitIssue = 42;       // finding a unit of four channels, and reading it
constexpr double kGroupedMmaPixelIssue = 3;       // putting a pixel's channels side by side
constexpr double kGroupedMmaFragmentIssue = 70;   // finding a word of weights
constexpr double kGroupedMmaClearIssue = 2;       // 16 bytes of lines
constexpr double kGroupedMmaJobIssue = 60;        // finding a warp's cells
constexpr double kGroupedMmaStepIssue = 8;        // weights and place of its taps
constexpr double kGroupedMmaProductIssue = 3;     // and the pixels' address and values
constexpr double kGroupedMmaPutIssue = 18;        // results of a cell, to shared memory
constexpr double kGroupedMmaChunkIssue = 40;      // 16 bytes of them, to the target
constexpr double kGroupedMmaProductCycles = 2.6;  // of shared memory or a tensor core, per cell

// What the blocks of a launch do. Counts are of one block.
struct GroupedWork {
  double blocks;
  double issue;       // warp instructions
  double wavefronts;  // cycles of shared memory
  double busy_warps;  // that have something to multiply
  double moved_bytes;
  double steps;        // that follow each other
  double least_bytes;  // of the whole problem, each byte once
  int64_t resident;    // blocks on a multiprocessor
  bool overlaps;       // copies with products of the same block
};

inline double predict_grouped_us(const GroupedWork& work, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double scale = sms / kGroupedReferenceSms;
  const double per_sm = std::max(1.0, work.blocks / sms);
  const double resident = std::min(static_cast<double>(work.resident), per_sm);
  const double warps = resident * work.busy_warps;
  // Warps stay with one of the four schedulers, and the one with the most is the last to end.
  const double share = warps / (std::ceil(warps / 4) * 4);
  const double rate = std::min(kGroupedIssuePerCycle * share, kGroupedWarpIssue * warps);
  const double compute =
      per_sm * std::max(work.issue / rate, work.wavefronts) / kGroupedCyclesPerUs;
  const double excess = std::max(0.0, work.blocks * work.moved_bytes - work.least_bytes);
  const double memory =
      (work.least_bytes / kGroupedBytesPerUs + excess / kGroupedExcessBytesPerUs) / scale /
      std::min(1.0, work.blocks / sms);
  // The first copies and the last products of a multiprocessor have nothing beside them.
  const double rounds = work.steps * std::ceil(per_sm / resident);
  const double busy = std::max(compute, memory) +
                      std::min(compute, memory) * std::min(1.0, kGroupedOverlapLoss + 1 / rounds);
  const double uneven = std::ceil(per_sm) / per_sm;
  const double alone = work.overlaps ? 1 : 1 + kGroupedOneBufferCost / resident;
  return kGroupedLaunchUs + busy * uneven * alone;
}

}  // namespace convx
