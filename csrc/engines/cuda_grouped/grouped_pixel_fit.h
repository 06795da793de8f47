// Grouped layers whose pixels have their channels side by side (channels_last). Plain host code.
#pragma once

#include <cstdint>
#include <string>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "device/fast_divmod.cuh"
#include "engines/cuda_axis.h"

namespace convx {

constexpr int kPixelQuad = 4;   // channels that are loaded, or results that are stored, at once
constexpr int kPixelStrip = 8;  // neighbouring results of a thread
constexpr int kPixelThreads = 256;

struct GroupedPixelParams {
  const void *source, *weight, *bias;
  void* target;
  int64_t source_n, source_h, source_w, target_n, target_h, target_w;
  int64_t weight_group, weight_target, weight_source, weight_r, weight_s;
  CudaAxis row, column;
  int source_height, source_width;
  int group_sources, group_targets;
  int quads;        // of targets, of all groups
  int block_quads;  // whose weights a block has in shared memory
  int quad_blocks;  // neighbouring blocks that have those of all
  int slots;        // strips that a block computes at once
  int strips;       // of all images
  bool aligned;     // to whole quads
  FastDivmod by_block_quads, by_row_strips, by_rows;
};

struct GroupedPixelFit {
  GroupedPixelParams params{};  // buffers are null
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
  double microseconds = 0;
};

// Empty, or why not.
std::string refuse_grouped_pixels(const ConvProblem& problem);
// Of problems that were not refused.
GroupedPixelFit fit_grouped_pixels(const ConvProblem& problem, const DeviceCaps& caps);
GroupedPixelParams make_grouped_pixel_params(const ConvProblem& problem, const GroupedPixelFit& fit,
                                             const Buffers& buffers);

}  // namespace convx
