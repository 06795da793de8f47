// Chooses the geometry of a weight gradient, and predicts its time. Plain host code.
#pragma once

#include <algorithm>
#include <optional>

#include "core/engine.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"

namespace convx {

struct WgradFit {
  OperandForm form{};
  WgradGeometry geometry{};
  int64_t workspace_bytes = 0;
  double microseconds = 0;  // predicted: packing, MMAs and the reduction
  // The geometry is that of dW's transpose: X and dY change places.
  bool is_transposed = false;

  void describe(Text& out) const;
};

// At the start of the workspace: scales (HalfScales) and the flag that chooses the form.
inline constexpr int64_t kScaleBytes = 256;

struct WgradPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaWeightGrad};

  WgradFit exact;
  // Set if kernels of `exact` read 16-bit tensors by rows, or TMA reads them: packs them instead,
  // for tensors whose address is not a multiple of WgradGeometry::alignment.
  std::optional<WgradFit> misaligned;
  // The faster form of float32, if it is. Where the GPU finds values that it cannot hold, exact
  // runs instead, as it does for addresses that this form cannot read.
  std::optional<WgradFit> scaled;

  void describe(Text& out) const;
};

// The fastest geometry by prediction, or nothing where no tile fits in shared memory, a limit of
// the geometry is exceeded, or none is faster than give_up_us.
// tensors_are_aligned: to 16 bytes, as TMA needs them. Others are packed.
std::optional<WgradFit> fit_wgrad(const ConvProblem& problem, const DeviceCaps& caps,
                                  OperandForm form, bool tensors_are_aligned = true,
                                  double give_up_us = kNeverGiveUp);

// The fastest geometry of the kernel that multiplies positions (wgrad_kernel.cuh), or nothing.
std::optional<WgradFit> fit_positions(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form, bool tensors_are_aligned = true,
                                      double give_up_us = kNeverGiveUp);

// The fastest geometry of the row kernel (rows_kernel.cuh) by prediction, or nothing where it
// cannot run: its tensors have adjacent columns.
std::optional<WgradFit> fit_rows(const ConvProblem& problem, const DeviceCaps& caps,
                                 OperandForm form, double give_up_us = kNeverGiveUp);

// The fastest geometry of the kernel that TMA boxes feed (row_boxes_kernel.cuh) by prediction, or
// nothing where the layer has several taps or TMA cannot read its rows.
std::optional<WgradFit> fit_row_boxes(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form, double give_up_us = kNeverGiveUp);

// Whether there is any; much faster.
bool fits_wgrad(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form);

// Steps of the searches (wgrad_steps.cpp). Blocks are counted in this order: tap groups, filters,
// channels, which also sets how a block finds its tile of the partial sums' grid.
WgradGeometry describe_problem(const ConvProblem& problem);  // fills in what the problem says
// Makes one long row of every image, if the layer is a 1x1 layer whose images are contiguous. The
// stride of rows, which is not used then, becomes that of channels.
void flatten_images(const ConvProblem& problem, WgradGeometry& g);
bool has_room_for_sums(const ConvProblem& problem, const DeviceCaps& caps);
void group_blocks(WgradGeometry& g);
void count_filter_blocks(const ConvProblem& problem, WgradGeometry& g);
void count_channel_blocks(const ConvProblem& problem, WgradGeometry& g);
// Sets what kernels divide by; for the chosen geometry only.
void set_block_divisors(WgradGeometry& g);
// Lets blocks write dW: reserves shared memory for so many staged matrices and the table of
// wgrad_store.cuh. Returns whether it fits.
bool reserve_store(const DeviceCaps& caps, int matrices, WgradGeometry& g);

inline constexpr int kMostSliceWaves = 4;  // of the kernel that multiplies positions

// Slices of split-K whose partial sums go to the workspace: a single one if waves is 0, or as many
// as fill the GPU so many times. Returns 0 if these are not a number of their own.
inline int count_slices(const DeviceCaps& caps, int waves, const WgradGeometry& g) {
  const int wanted = waves == 0 ? 1 : waves * caps.sm_count / g.slice_blocks();
  if (wanted < 1 || (waves > 0 && wanted == 1)) return 0;
  return static_cast<int>(std::min<int64_t>(wanted, g.stages_total));
}
// Calls consider(g) with all of them.
template <typename Consider>
void visit_slices(const DeviceCaps& caps, int most_waves, WgradGeometry& g,
                  const Consider& consider) {
  for (int waves = 0; waves <= most_waves; ++waves) {
    const int slices = count_slices(caps, waves, g);
    if (slices == 0) continue;
    g.slices = slices;
    consider(g);
  }
}
// Predictions (wgrad_cost.cpp): rates of an H200 that all MMA kernels have, fitted to timings of
// the suite (2026-11-18).
inline constexpr double kClockGhz = 1.6;          // under load
inline constexpr double kCopyBytesPerCycle = 26;  // from L2, by each of all multiprocessors

// What the predictions of all geometries of a problem share.
struct WgradCosts {
  WgradCosts(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form);

  const ConvProblem& problem;
  const DeviceCaps& caps;
  OperandForm form;
  int components;
  double bytes;                        // count_bytes(problem)
  double input_bytes, gradient_bytes;  // of X and dY
};

// What the predictions of all slices of a block share.
struct WgradBlockCosts {
  double stage_cycles, halo_cycles;
  double memory_us;
};
WgradBlockCosts make_block_costs(const WgradCosts& costs, const WgradGeometry& geometry);

// Microseconds of packing, MMAs and the reduction, for the kernel that multiplies positions.
double predict_wgrad(const WgradCosts& costs, const WgradBlockCosts& block,
                     const WgradGeometry& geometry);

// A lower bound of predict_wgrad() for all numbers of split-K slices, from the sources, the blocks
// and the stages alone: what is laid out in shared memory and the workspace only adds to it. A
// bound of give_up_us or longer may be a rough one.
double bound_wgrad(const WgradCosts& costs, const WgradGeometry& geometry, double give_up_us);

// A lower bound for all blocks that use an MMA, which need so many groups of taps.
double bound_mma(const WgradCosts& costs, const WgradGeometry& geometry, int tap_groups);

// A lower bound for all geometries of all kernels, from the problem alone.
double bound_weight_grad(const ConvProblem& problem, const DeviceCaps& caps);

// Microseconds of the kernel that adds the partial sums of so many slices.
double predict_sums(const ConvProblem& problem, const WgradGeometry& geometry, int slices);
// Microseconds after the MMAs: predict_sums(), or a constant if the blocks write dW themselves.
double predict_reduction(const ConvProblem& problem, const WgradGeometry& geometry);

double mma_cycles(int columns);                      // issue, or reading both operands
double store_cycles(const WgradGeometry& geometry);  // for a block to write its share of dW, if any
double fixed_cycles(const WgradGeometry& geometry);  // of a block, besides its stages
double count_waves(const DeviceCaps& caps, const WgradGeometry& geometry);  // of blocks or clusters

}  // namespace convx
