// 1x1 layers whose pixels follow each other, those of all images, with their channels side by side:
// matrices of [pixel][channel]. Plain host code.
#pragma once

#include "core/problem.h"
#include "engines/cuda_limits.h"

namespace convx {

// Each pixel of y comes from one of x.
inline bool is_one_to_one(const ConvProblem& p) {
  return p.R == 1 && p.S == 1 && p.stride.h == 1 && p.stride.w == 1 && p.P == p.H && p.Q == p.W &&
         p.pad.top == 0 && p.pad.left == 0;
}

inline bool has_dense_pixels(const ConvProblem& p) {
  const auto follow_each_other = [&](const Strides& s, int64_t channels) {
    return s.c == 1 && s.w >= channels && s.h == p.W * s.w && (p.N <= 1 || s.n == p.H * s.h);
  };
  return is_one_to_one(p) && p.N > 0 && refuse_many_pixels(p).empty() &&
         follow_each_other(p.x_strides, p.C) && follow_each_other(p.y_strides, p.K);
}

// The same layer as one image of two long rows, so that tiles end with neither rows nor images; or,
// where that cannot be, as it is.
inline ConvProblem flatten_pixels(const ConvProblem& problem) {
  const int64_t pixels = problem.N * problem.H * problem.W;
  if (!has_dense_pixels(problem) || pixels % 2 != 0) return problem;
  ConvProblem flat = problem;
  flat.N = 1;
  flat.H = flat.P = 2;
  flat.W = flat.Q = pixels / 2;
  for (Strides* strides : {&flat.x_strides, &flat.y_strides}) {
    strides->h = flat.W * strides->w;
    strides->n = 2 * strides->h;
  }
  return flat;
}

}  // namespace convx
