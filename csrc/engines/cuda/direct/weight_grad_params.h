// Parameters of the weight-gradient kernels. Plain data: filled on the host, in constant memory.
#pragma once

#include <cstdint>

#include "core/fast_divmod.h"
#include "engines/cuda/direct/gather_params.h"

namespace convx {

struct WeightGradParams {
  const void* x;
  const void* y;
  void* w;
  void* partial;  // [split][tile][filter of tile][column of tile], accumulation type
  ElementStrides x_strides, y_strides;
  ElementStrides w_strides;  // n: filters, c: channels, h: r, w: s
  int64_t pixels;            // N * P * Q
  int64_t pixels_per_split;
  int H, W, P, Q, R, S;
  int channels, filters;  // per group
  int stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
  int filter_tiles, column_tiles;
  int64_t first_tile;  // first tile of this launch, of [group][filter tile][column tile]
  int tiles;
  int splits;
  bool direct;  // there is no workspace and one split: the kernel writes w itself
  FastDivmod by_P, by_Q;
  // Elements from each pixel to the next over all images, where that is constant in both tensors
  // and output pixel i reads input pixel i; otherwise 0. weight_grad_pixels.cuh only.
  int64_t x_pitch, y_pitch;
  bool x_has_units;  // true: the channels of a pixel are read 16 bytes at a time
};

}  // namespace convx
