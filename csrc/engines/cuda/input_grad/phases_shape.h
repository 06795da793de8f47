// A strided input gradient as convolutions with stride 1, which other engines compute. Plain host
// code.
//
// Along an axis with stride s, target positions that differ by a multiple of s see the same taps:
// they are a phase (core/gather_view.h). There are four forms.
//
// kChannels: phases become channels. Position h belongs to phase k = (h + pad) mod s, which has a
// tap only if k < kept = min(R, s), and to lattice point i = (h + frame) / s. With `taps` inner
// taps per axis,
//
//     results[n][c, phase k][i] = sum over t of  y[n][i + first_offset + t] * w[c][tap(k, t)]
//
// is one forward convolution with stride 1 and C * kept filters (kept along both axes) from y to
// the workspace. It computes all phases at once and reads y once. A second kernel interleaves the
// results, and writes zeros where no tap reaches: every byte of the target is written once, in
// order. A 1x1 kernel stays a 1x1 layer, a kernel no larger than its stride becomes one. Others get
// inner taps with weight 0, at most s - 1 per axis: 3x3 with stride 2 has 16 products for 9. Such a
// zero times an infinity is NaN, which the definition does not have, so that the second kernel
// recomputes results that are NaN.
//
// kViews: each phase is an input gradient with stride 1 of views of x (every s-th pixel) and of w
// (the taps that reach the phase), written in place. Nothing is multiplied by zero, but y is read
// once for each phase. Pixels must be the targets of whole vectors for that to be efficient:
// channels_last.
//
// kRows: each phase of the rows is a forward convolution with stride 1 that has the phases of the
// columns as channels. In channels_last, the s pixels  s*j, ..., s*j + s - 1  of a target row are
// one pixel of s * C channels of a view, so that the results are written in place:
//
//     view[n][i][j][a * C + c] = target[n][s*i + row phase][s*j + a][c]
//
// Only columns have inner taps with weight 0: 3x3 with stride 2 has 12 products for 9. If there are
// any, a kernel looks for infinities and NaN in y first, and another recomputes results that are
// NaN if there were some.
//
// kTransposed, for dense layers in NCHW of which each phase has one tap at most: y is transposed to
// channels_last in the workspace, the inner convolution is that of kChannels on pixels, by any
// engine, and a last kernel transposes its results to the target and writes the zeros. (Where
// phases have more taps, cuda_boxes itself transposes.)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engines/engines.h"
#include "kernels/pack_filters.h"
#include "kernels/pixel_copies.h"

namespace convx {

// Parameters of the kernels. Plain data; strides are in elements.
inline constexpr int kPhasesThreads = 256;
inline constexpr int kPlaneChannels = 4;  // channels that a thread interleaves in NCHW

// Transposition (phases_transpose.cuh): bytes of channels per thread, threads of a warp along the
// channels and along the pixels.
inline constexpr int kTransposeBytes = 16;
inline constexpr int kTransposeChannelLanes = 4, kTransposePixelLanes = 8;

// The place of a target position among the phases of its axis.
struct PhasePlace {
  int pad, frame, kept;
  FastDivmod by_step;  // the stride
};

// Sets *flag if the source, channels_last, has an infinity or a NaN.
struct ScanParams {
  const void* source;
  int* flag;
  Strides source_strides;
  int unit, image_units, units;  // as in InterleaveParams
  int element_bytes;
  uint32_t exponent, high_exponent;  // bits of a word's low and high value; equal if it has one
  FastDivmod by_units, by_columns, by_rows;
};

// Planes have contiguous pixels. The channels of a pixel are contiguous and start at a multiple of
// 16 bytes.
struct TransposeParams {
  void* planes;
  const void* pixels;
  int64_t planes_n, planes_c;
  int64_t pixels_n;
  int pixels_h, pixels_w;
  int row_phase, column_phase;  // offsets of a pixel's phases
  PhasePlace rows, columns;
  FastDivmod by_columns;  // of a plane
  int channels, plane;    // plane: pixels of a plane
  int unit;               // elements of a plane that a thread accesses at once
  int image_tiles;        // tiles of one image; a tile is a warp's work
  int tiles;              // tiles of all images of the launch
  FastDivmod by_channel_tiles, by_pixel_tiles;
};

struct InterleaveParams {
  const int* flag;  // kRows: nothing is recomputed if *flag is 0
  const void* results;
  void* target;
  const void* source;  // y and w, for results that are recomputed
  const void* filters;
  int64_t result_n;
  int result_group, result_c, result_h, result_w;
  int result_row_phase, result_column_phase;
  Strides target_strides, source_strides, filter_strides;
  PhasePlace rows, columns;
  bool has_pixels;  // a unit is channels of one pixel; otherwise it is columns of one row
  bool recomputes;  // results that are NaN are recomputed by the definition
  int unit;         // elements that a thread stores at once
  int image_units;  // units of one image; in NCHW, groups of kPlaneChannels units
  int units;        // the same of all images of the launch
  int channels, group_channels, group_filters;
  int kernel_rows, kernel_columns, dilation_h, dilation_w, source_height, source_width;
  FastDivmod by_units, by_columns, by_rows, by_group_channels;
  FastDivmod by_channels;  // NCHW: groups of kPlaneChannels channels
};

enum class PhasesForm : uint8_t { kChannels, kViews, kRows, kTransposed };

struct PhaseAxis {
  int64_t step = 1;  // s
  int64_t pad = 0, frame = 0;
  int64_t kept = 0;          // phases that some tap reaches
  int64_t count = 0;         // lattice points, including those past the last target position
  int64_t taps = 0;          // inner taps of every phase
  int64_t first_offset = 0;  // zero or negative
  int64_t dilation = 1;      // inner dilation; above 1 only if s is 1
  int64_t pad_after = 0;     // of the inner convolution; -first_offset is the padding before

  // True if some phases have fewer taps than others, and inner taps with weight 0.
  bool has_zero_taps(int64_t kernel) const { return kept * taps != kernel; }
};

// Empty if a stride above 1 meets a dilation above 1.
std::optional<PhaseAxis> fit_phase_frame(int64_t input, int64_t output, int64_t kernel,
                                         int64_t stride, int64_t pad, int64_t dilation,
                                         int64_t frame);
// Chooses the frame that needs the fewest inner products.
std::optional<PhaseAxis> fit_phase_axis(int64_t input, int64_t output, int64_t kernel,
                                        int64_t stride, int64_t pad, int64_t dilation);

struct InnerProblem {
  ConvProblem problem;
  Plan plan;
};

struct ViewedPhase : InnerProblem {
  int64_t x_offset = 0, w_offset = 0;  // elements from the tensor's start to the view's
};

struct RowPhase : InnerProblem {
  FilterPack pack{};
  int64_t x_offset = 0;       // elements from the tensor's start to the view's
  int64_t filter_offset = 0;  // bytes from the workspace's start
};

struct PhasesShape {
  static constexpr EngineId kEngines[] = {EngineId::kCudaPhases};

  PhasesForm form = PhasesForm::kChannels;
  std::vector<ViewedPhase> views;  // kViews

  // kRows. Workspace, in order: the flag, packed filters, workspace of the inner convolution.
  std::vector<RowPhase> rows;
  ScanParams scan{};

  // kChannels and kTransposed. Images are computed in chunks, so that the results stay in L2 until
  // they are interleaved or transposed; the last chunk may have fewer.
  int64_t chunk_images = 0;
  InnerProblem whole, rest;  // a chunk, and the last one; rest has no images if chunks are equal
  bool filters_in_place = false;  // true: the inner convolution reads w as it is
  FilterPack pack{};
  InterleaveParams interleave{};  // kRows: of the kernel that recomputes
  PlaneCopy to_pixels;            // kTransposed: of y
  TransposeParams to_planes{};    // and of the results
  // Workspace, in order: packed filters, transposed y, results, workspace of the inner convolution.
  int64_t filter_bytes = 0, source_bytes = 0, result_bytes = 0;

  int64_t workspace_bytes = 0;
  double microseconds = 0;

  void describe(Text& out) const;
};

// Empty if the problem does not have the form, if it does not fit in the workspace, or if it would
// take give_up_us or longer.
std::optional<PhasesShape> fit_phases(const ConvProblem& problem, const DeviceCaps& caps,
                                      PhasesForm form, double give_up_us = kNeverGiveUp);

// Multiply-adds of the inner convolutions of kChannels or kRows, if tiles have 64 filters at least.
double count_phase_products(const ConvProblem& problem, PhasesForm form);

// Without a search, a time that no engine is predicted to beat for a forward pass, or for an input
// gradient with stride 1.
double bound_inner_us(const ConvProblem& problem, const DeviceCaps& caps);
// Without a search, a time that no form of this engine is predicted to beat.
double bound_phases_us(const ConvProblem& problem, const DeviceCaps& caps);

// Steps of fit_phases that several forms use.
inline constexpr int64_t kPhasesAlignment = 256;                 // of the workspace's pieces
inline constexpr int64_t kMostPhaseElements = int64_t{1} << 30;  // of an image, of the filters
std::optional<PhasesShape> fit_row_phases(const ConvProblem& problem, const DeviceCaps& caps,
                                          double give_up_us);
// kChannels and kTransposed.
std::optional<PhasesShape> fit_chunked_phases(const ConvProblem& problem, const DeviceCaps& caps,
                                              PhasesForm form, double give_up_us);
// Plans an inner convolution whose P and Q are known. Empty if they are wrong, or if no engine
// takes it with that much workspace and in less than give_up_us.
std::optional<InnerProblem> plan_inner(ConvProblem problem, const DeviceCaps& caps,
                                       int64_t workspace_limit, double give_up_us);
// The packed weights of an inner convolution, whose channels are the filters of w. Returns
// everything but the pointers. phase_is_slowest: see FilterPack.
FilterPack make_phase_pack(const ConvProblem& problem, const PackAxis& r, const PackAxis& s,
                           const Hw& taps, const Hw& phases, bool phase_is_slowest);
PhasePlace place_phases(const PhaseAxis& axis);
// Sets everything but results, unit and pointers.
void set_target_geometry(InterleaveParams& params, const ConvProblem& problem,
                         const PhaseAxis& rows, const PhaseAxis& columns);

// Sets the number of elements that a thread stores at once, which must divide the lines.
void set_interleave_unit(InterleaveParams& params, const ConvProblem& problem, int unit);
void set_scan_unit(ScanParams& params, const ConvProblem& problem, int unit);

}  // namespace convx
