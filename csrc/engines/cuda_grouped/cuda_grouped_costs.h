// The numbers the cost model of cuda_grouped adds to those of cuda_depthwise: instructions of a
// warp, read off the compiled kernels. Plain host code.
#pragma once

#include "engines/cuda_depthwise/cuda_depthwise_costs.h"

namespace convx {

constexpr double kGroupedCellIssue = 150;         // finding block, cell and unit
constexpr double kGroupedRunIssue = 12;           // beginning a run of taps of a channel
constexpr double kGroupedTapRowIssue = 4;         // its loop, per row of taps
constexpr double kGroupedVectorStoreIssue = 6;    // four results
constexpr double kGroupedElementStoreIssue = 14;  // four results one by one
constexpr double kGroupedElementStoreBytes = 2;   // what pieces of sectors cost
constexpr double kGroupedUnitIssue = 5;           // copying a unit of a channel
constexpr double kGroupedElementIssue = 8;        // the same through registers
constexpr double kGroupedLineIssue = 12;          // finding a line, of all channels of a chunk
constexpr double kGroupedWeightRowIssue = 60;     // finding a row of a filter's taps
constexpr double kGroupedWeightIssue = 9;         // bringing in one of them

}  // namespace convx
