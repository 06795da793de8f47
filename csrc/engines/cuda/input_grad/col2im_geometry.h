// The input gradient of layers with few channels as a GEMM whose results are added up in the block
// (col2im). Plain data.
//
//   T[p, q][r, s, c]  =  sum over k of  dY[k][p][q] * W[k][c][r][s]
//   dX[c][h][w]       =  sum of T[p, q][r, s, c] over the taps with  p * stride + r * dilation
//                        = h + pad,  and the same for q, s and w
//
// Pixels of dY are the rows of the MMAs, (tap, channel) are their columns, and filters are the
// reduction. Every MMA row and almost every column is used although C is small, and a pixel of dY
// is read once for all taps.
//
// Words. A padded coordinate of dX is h + pad_top or w + pad_left. A strip is a range of columns of
// dX with the 64 columns of dY that reach it. A step is a row p of dY: it adds to the dX rows with
// padded coordinates p*stride + r*dilation, and completes those from p*stride to p*stride + stride
// - 1. A worker goes down strips step by step, and keeps the sums of unfinished rows of dX in a
// ring in shared memory, so that only the strips' halo columns are computed twice. A unit is 1 or 4
// channels of a dX column in the strip; one thread of the worker owns all its sums.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/half_plan.h"
#include "planning/tensor_math.h"
#include "planning/tensor_params.h"

namespace convx {

struct LaunchSite;

inline constexpr int kStripPixels = 64;   // columns of dY of a strip: the rows of an MMA
inline constexpr int kDepthFilters = 64;  // filters of a stage
inline constexpr int kAtomColumns = 32;   // MMA columns that lie side by side in shared memory
inline constexpr int kStageBytes = kStripPixels * kDepthFilters * 2;  // of a component
inline constexpr int kWorkers = 2;                                    // of a block
inline constexpr int kMaxStages = 4;                                  // of a worker
inline constexpr int kCol2imThreads = 2 * kWorkers * 128;

struct Col2imGeometry {
  Strides y_strides, x_strides;
  int filters, channels;  // of a group
  int height, width, out_height, out_width;
  int kernel_rows, kernel_columns;
  int stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;

  int tile_channels;  // channels of dX that a block computes
  int channel_tiles;  // of a group
  int vector;         // channels of a unit, 1 or 4
  int chunk_rows;     // kernel rows whose columns are multiplied at once
  int chunks;
  int depth_chunks;   // stages of a row of dY
  int columns;        // of an MMA
  int chunk_columns;  // of them that are used, [kernel row][kernel column][channel]
  int atoms;          // of a chunk that are stored
  int pitch;          // words between the pixels of T

  int strips, strip_points;  // a strip has strip_points * stride_w columns of dX
  int halo_points;           // columns of dY before those that only this strip has; even
  // The first strip's first padded column is first_point * stride_w; even.
  int first_point;
  int first_step, steps;  // of an image
  int halo_steps;         // steps that a worker takes before the first row of dX that it stores

  int units, ring_rows;
  int tap_step;   // a unit's taps are so many kernel columns apart,
  int taps;       // and there are at most so many;
  int tap_words;  // in T they are so many words apart, negative

  int stages;       // of a worker
  int tile_blocks;  // blocks that share a tile of channels
  int blocks;
  int shared_bytes;

  // Set by the launch, because they depend on addresses.
  bool source_has_vectors;  // pairs of pixels, or 8 channels, are aligned
  bool target_has_vectors;  // 4 channels are aligned

  // Filters in shared memory: [component][chunk][atom][filter][32 columns], 64-byte rows, swizzled.
  constexpr int atom_bytes() const { return depth_chunks * kDepthFilters * kAtomColumns * 2; }
  constexpr int component_bytes() const { return chunks * atoms * atom_bytes(); }
  constexpr int unit_columns() const { return strip_points * stride_w; }
  constexpr int quads() const { return tile_channels / vector; }
  // Units in groups of 4 columns by 2 quads, which read T without bank conflicts.
  constexpr bool pairs_quads() const { return vector == 4 && quads() % 2 == 0; }
  // Every step completes one row of dX and is the first to reach another one, so that neither needs
  // the ring to be read and written.
  constexpr bool merges_rows() const { return stride_h == 1; }
  constexpr int ring_bytes() const { return (ring_rows * units * vector * 4 + 15) / 16 * 16; }
};

// Columns of the MMAs that kernels are compiled for; split formats have two sets of accumulators.
inline constexpr int kCol2imColumns[] = {64, 96, 128, 160};
inline constexpr int kCol2imSplitColumns[] = {64, 96};

template <TensorMath kMath>
constexpr const auto& col2im_columns_of() {
  if constexpr (count_planes(kMath) == 1) {
    return kCol2imColumns;
  } else {
    return kCol2imSplitColumns;
  }
}

// target: dX, source: dY.
struct Col2imParams : TensorParams {
  Col2imGeometry g;
};

// The operand formats that kernels are compiled for, in col2im_launch.cu.
inline constexpr TensorMath kCol2imMaths[] = {TensorMath::kBFloat16, TensorMath::kFloat16,
                                              TensorMath::kHalfTf32, TensorMath::kHalfIeee,
                                              TensorMath::kIeee};
template <TensorMath kMath>
void launch_col2im(const LaunchSite& site, const Col2imParams& params);

// What the planner decides for one operand format.
struct Col2imShape {
  TensorMath math{};
  int64_t packed_bytes = 0;
  double microseconds = 0;
  Col2imGeometry geometry{};

  void describe(Text& out) const;
};

struct Col2imFit {
  Col2imShape shape;
  Col2imParams params{};
};

struct Col2imPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaCol2im};

  ConvProblem problem;
  HalvedPlan<Col2imFit> fits;

  void describe(Text& out) const { describe_halves(out, fits); }
};

// The fastest shape by prediction. Empty if the filters of a single channel do not fit in shared
// memory, or the packed filters in the workspace. kTf32 has kIeee's shape, because wgmma takes no
// MN-major TF32.
std::optional<Col2imShape> fit_col2im(const ConvProblem& problem, const DeviceCaps& caps,
                                      TensorMath math);

// The fewest taps that an element of dX with any taps has, borders aside.
int64_t count_fewest_taps(const ConvProblem& problem);

Col2imFit make_col2im_fit(const ConvProblem& problem, Col2imShape shape);

// The parameters of a call whose workspace starts at offset.
Col2imParams make_col2im_params(const ConvProblem& problem, const Col2imFit& fit, Buffers buffers,
                                int64_t offset);

}  // namespace convx
