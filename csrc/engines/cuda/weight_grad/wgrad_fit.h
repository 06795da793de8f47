// Chooses the geometry of a weight gradient, and predicts its time. Plain host code.
#pragma once

#include <optional>

#include "core/device_caps.h"
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
};

// At the start of the workspace: scales (half_scales.h) and the flag that chooses the form.
inline constexpr int64_t kScaleBytes = 256;

struct WgradPlan {
  WgradFit exact;
  // Set if kernels of `exact` read 16-bit tensors by rows, or TMA reads them: packs them instead,
  // for tensors whose address is not a multiple of WgradGeometry::alignment.
  std::optional<WgradFit> misaligned;
  // The faster form of float32, if it is. Where the GPU finds values that it cannot hold, exact
  // runs instead, as it does for addresses that this form cannot read.
  std::optional<WgradFit> scaled;
};

// Widths of an MMA that kernels are compiled for, widest first.
inline constexpr int kPlainColumns[] = {256, 224, 192, 160, 128, 96, 64};
inline constexpr int kPromotedColumns[] = {128, 96, 64};  // if promotes_sums
inline constexpr int kNarrowestColumns = 64;

// Consumer warpgroups that a block has at most: registers for the accumulators decide. Forms that
// promote them have two sets, and blocks that convert have more warps besides the consumers.
constexpr int max_consumers(int columns, OperandForm form, bool converts) {
  const int accumulated = columns * (promotes_sums(form) ? 2 : 1);
  if (converts) return accumulated <= 128 ? 3 : accumulated <= 192 ? 2 : 1;
  return accumulated <= 192 ? 3 : 2;
}

inline constexpr int kProducerThreads = 64;  // a warp for each operand
// Blocks that convert their operands have converter warps, and one warp that loads.
inline constexpr int kConvertingThreads = 32 * (kConverterWarps + 1);

// The fastest geometry by prediction, or nothing where no tile fits in shared memory or a limit of
// the geometry is exceeded.
// tensors_are_aligned: to 16 bytes, as TMA needs them. Others are packed.
std::optional<WgradFit> fit_wgrad(const ConvProblem& problem, const DeviceCaps& caps,
                                  OperandForm form, bool tensors_are_aligned = true);

// The same of the kernel that multiplies positions (wgrad_kernel.cuh).
std::optional<WgradFit> fit_positions(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form, bool tensors_are_aligned = true);

// The fastest geometry of the row kernel (rows_kernel.cuh) by prediction, or nothing where it
// cannot run: its tensors have adjacent columns.
std::optional<WgradFit> fit_rows(const ConvProblem& problem, const DeviceCaps& caps,
                                 OperandForm form);

// The fastest geometry of the kernel that TMA boxes feed (row_boxes_kernel.cuh) by prediction, or
// nothing where the layer has several taps or TMA cannot read its rows.
std::optional<WgradFit> fit_row_boxes(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form);

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
// Lets blocks write dW: reserves shared memory for so many staged matrices and the table of
// wgrad_store.cuh. Returns whether it fits.
bool reserve_store(const DeviceCaps& caps, int matrices, WgradGeometry& g);

}  // namespace convx
