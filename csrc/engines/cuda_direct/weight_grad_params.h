// What the weight-gradient kernels are told. Plain data: filled on the host, read from constant
// memory.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_direct/gather_params.h"

namespace convx {

struct WeightGradParams {
  const void* x;
  const void* y;
  void* w;
  void* partial;  // [split][tile][filter of tile][column of tile], accumulation type
  ElementStrides x_strides, y_strides;
  ElementStrides w_strides;  // n: filters, c, h: r, w: s
  int64_t pixels;            // N * P * Q
  int64_t pixels_per_split;
  int H, W, P, Q, R, S;
  int channels, filters;  // per group
  int stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
  int filter_tiles, column_tiles;
  int64_t first_tile;  // this launch's slice of all tiles [group][filter tile][column tile]
  int tiles;
  int splits;
  bool direct;  // no room for partial sums: write w from the only split
  FastDivmod by_P, by_Q;
};

}  // namespace convx
