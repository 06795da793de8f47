// Constants of cuda_lines's cost model (window_costs.cpp).
#pragma once

namespace convx {

// The cost model, in cycles of one SM. The rates were fitted to 1667 timings of 13 shapes on an
// H200 in November 2026, with an rms error of 11%; see docs/developers/dense-layers.md. Constants
// that have another source say so.
inline constexpr double kWindowClockGhz = 1.7;
// At full rate an MMA of 64 filters x N positions x 32 bytes takes N/2 cycles, so one reduction
// step of both warpgroups takes as many cycles as a window has columns. The efficiencies are the
// fraction of that rate that is reached: every MMA reads its filters again, so narrow windows are
// slower.
inline constexpr double kWideWindowEfficiency = 0.94;    // 192 columns or more
inline constexpr double kMiddleWindowEfficiency = 0.85;  // 128 columns
inline constexpr double kNarrowWindowEfficiency = 0.5;
inline constexpr double kIeeeWindowEfficiency = 0.94;  // several MMAs read the same filters
// Cycles that a warp takes to issue a group of MMAs, and for each MMA in it. The tensor cores wait
// if that is longer than the MMAs take. Seen in a profile, not fitted.
inline constexpr double kWindowGroupCycles = 900;
// Issuing a group where TMA boxes bring sources: ten input gradients in bf16 (H200, 2026-11-18).
inline constexpr double kBoxGroupCycles = 430;
inline constexpr double kWindowProductCycles = 50;
inline constexpr double kIeeeBatchCycles = 260;  // adding an accumulation chain to the totals
inline constexpr double kScarceFilterStages =
    1.06;  // factor if there are fewer than three filter stages
// Factor if there are fewer than three source stages and many chunks; seen on one shape.
inline constexpr double kScarceSourceStages = 1.5;
inline constexpr double kWindowLineBytes = 30;  // bytes of lines per cycle, from L2
// Factor on the prediction where the reduction is split: 16 layers of 7x7 pixels take 1.13 to 1.77
// times as long as the sum of the terms says; the smallest factor that chooses as they were timed
// (2026-11-19).
inline constexpr double kWindowSplitTiles = 1.15;
inline constexpr double kWindowFilterBytes = 20;  // bytes of packed filters per cycle
// The epilogue. The MMA warps take kWindowStageCycles per column to stage 16-bit results. The store
// warps then store 64 filters each. If pixels form runs, or channels are contiguous, they use bulk
// copies, which run at memory bandwidth but take at least kWindowCopyCycles each, whether a copy is
// a filter's run or a pixel's filters.
inline constexpr double kWindowStageCycles = 3.8;
inline constexpr double kWindowCopyCycles = 22;    // measured with copies alone
inline constexpr double kPartialSectorCycles = 4;  // per sector that two tiles write
inline constexpr double kWindowScatterCycles =
    44;  // per column of 16-bit results, without bulk copies
// A TMA box of the source, and each position in it, whether it has 32 bytes or 128.
inline constexpr double kBoxCycles = 60;
inline constexpr double kBoxPositionCycles = 1.4;
// A position where boxes take some of a pixel's channels from device memory: each visit reads a few
// sectors of it. Input gradients of kb55 and seed63 in bf16, channels_last (H200, 2026-11-18).
inline constexpr double kSlicedPositionCycles = 4;      // 32 bytes of a pixel
inline constexpr double kHalfLinePositionCycles = 2.6;  // 64 bytes
inline constexpr int kWholePixelBytes = 128;
// Transposing a position, by both warps of a streaming block; measured where this was the limit.
inline constexpr double kTransposedPositionCycles = 12;
inline constexpr double kConvertedPositionCycles = 21;  // the same with conversion to scaled fp16
// Factor for 1x1 kernels in float32 or channels_last: they have too few MMAs to hide anything else.
inline constexpr double kSingleTapWaits = 1.25;
inline constexpr double kWindowTileCycles = 1900;  // filling and draining the pipeline
inline constexpr double kWindowLaunchCycles =
    15000;                                         // both kernels, with their first and last tiles
inline constexpr double kBoxLaunchCycles = 25000;  // the same with sources by TMA boxes
// Launches where scales are measured first, in channels_last, and the bytes of filters per cycle
// that all multiprocessors read then: six input gradients in TF32 (H200, 2026-11-18).
inline constexpr double kMeasuredLaunchCycles = 23500;
inline constexpr double kMeasuredFilterBytes = 370;
inline constexpr double kWindowBatchLaunchCycles =
    13000;                                        // the same for each further batch of images
inline constexpr double kWindowMemoryBytes = 10;  // writing lines, bytes per cycle
inline constexpr double kWindowCopiedBytes =
    18;  // the same if the source's channels are contiguous
inline constexpr double kWindowStoredBytes = 15;  // storing results, bytes per cycle
inline constexpr double kOddValueCycles = 3.3;  // storing a value if pixels are not 16-byte aligned
inline constexpr double kWindowPartialBytes = 10;  // partial sums, which are written and read again
inline constexpr double kGroupSumLaunchCycles = 4800;  // see PhaseTraffic::group_cycles

}  // namespace convx
