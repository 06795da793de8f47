// Predicts the time of a weight gradient. Plain host code.
#pragma once

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"

namespace convx {

// Rates of an H200 that both MMA kernels have, fitted to timings of the suite (2026-11-18).
inline constexpr double kClockGhz = 1.6;          // under load
inline constexpr double kBlockCycles = 6000;      // before the first MMA, and the epilogue
inline constexpr double kCopyBytesPerCycle = 26;  // from L2, by each of all multiprocessors

// Packing, MMAs and the reduction, in microseconds.
double predict_wgrad(const ConvProblem& problem, const DeviceCaps& caps,
                     const WgradGeometry& geometry, OperandForm form);

// The kernel that adds partial sums, of either MMA kernel.
double predict_reduction(const ConvProblem& problem, const WgradGeometry& geometry);

// For blocks that write dW themselves (WgradGeometry::writes_result).
inline constexpr double kStartCycles = 4500;                 // before the first MMA
double store_cycles(const WgradGeometry& geometry);          // a block writes its share of a tile
int64_t count_clusters(const DeviceCaps& caps, int blocks);  // that run at the same time

}  // namespace convx
