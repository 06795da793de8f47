// Fits grouped channels_last layers to grouped_pixel_kernel. Plain host code.
#pragma once

#include <cstdint>
#include <string>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/fast_divmod.h"
#include "core/problem.h"
#include "planning/cuda_axis.h"

namespace convx {

constexpr int kPixelQuad = 4;   // channels per load, or outputs per store
constexpr int kPixelStrip = 8;  // neighbouring outputs of a thread
constexpr int kPixelThreads = 256;

struct GroupedPixelParams {
  const void *source, *weight, *bias;
  void* target;
  int64_t source_n, source_h, source_w, target_n, target_h, target_w;
  int64_t weight_group, weight_target, weight_source, weight_r, weight_s;
  CudaAxis row, column;
  int source_height, source_width;
  int group_sources, group_targets;
  int quads;        // quads of target channels, in all groups
  int block_quads;  // quads of a block, whose weights are in shared memory
  int quad_blocks;  // neighbouring blocks that together cover all quads
  int slots;        // strips that a block computes at once
  int strips;       // in all images
  bool aligned;     // loads and stores of a quad are single aligned vectors
  FastDivmod by_block_quads, by_row_strips, by_rows;
};

struct GroupedPixelFit {
  GroupedPixelParams params{};  // complete except for the buffers
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
  double microseconds = 0;
};

// Returns the refusal, or an empty string.
std::string refuse_grouped_pixels(const ConvProblem& problem);
// The problem must not have been refused.
GroupedPixelFit fit_grouped_pixels(const ConvProblem& problem, const DeviceCaps& caps);
GroupedPixelParams make_grouped_pixel_params(const ConvProblem& problem, const GroupedPixelFit& fit,
                                             const Buffers& buffers);

}  // namespace convx
