// Depthwise input gradients with stride 2 (phase_strip_kernel.cuh). Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/fast_divmod.h"
#include "core/problem.h"

namespace convx {

inline constexpr int kPhaseStride = 2;
inline constexpr int kPhaseStripAhead = 2;  // prefetch distance in rows of y

// Most taps of a phase along an axis.
constexpr int count_phase_taps(int kernel) { return (kernel + kPhaseStride - 1) / kPhaseStride; }
// Channels of a thread in channels_last, limited by registers: the weights stay there.
constexpr int count_phase_channels(int kernel) { return kernel == 3 ? 4 : 2; }
// Resident blocks, limited by registers.
inline constexpr int kPhaseStripBlocks = 4;

// Strides are in elements.
struct PhaseStripParams {
  const void* source;  // y
  const void* weight;
  const void* bias;  // null
  void* target;      // x
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t weight_k, weight_r, weight_s;
  int source_height, source_width, target_height, target_width;
  int pad_top, pad_left;
  int first_row, end_row, first_column;  // lattice points
  int threads, segment_rows;
  bool channel_is_fastest;  // neighbouring threads have neighbouring channels, otherwise columns
  FastDivmod by_vectors, by_columns, by_segments;
};

// Stored in Plan::shape.
struct PhaseStripFit {
  PhaseStripParams params{};
  int kernel = 0;      // 3 or 5
  int channels = 0;    // of a thread: 1, 2 or 4
  int64_t blocks = 0;  // 0: the kernel does not serve the problem
  double microseconds = 0;
};

// True for the problems that only this kernel can serve.
inline bool is_strided_input_grad(const ConvProblem& p) {
  return p.pass == Pass::kInputGrad && p.stride != Hw{1, 1};
}

PhaseStripFit fit_phase_strips(const ConvProblem& problem, const DeviceCaps& caps);

// Completes the fit with the buffers of one call. Their alignment limits a thread's channels.
PhaseStripFit make_phase_strips(const ConvProblem& problem, const PhaseStripFit& fit,
                                const Buffers& buffers);

}  // namespace convx
