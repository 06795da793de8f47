// 1x1 layers whose pixels follow each other: those of a plane, or those of all images with their
// channels side by side, matrices of [pixel][channel]. Plain host code.
#pragma once

#include "core/problem.h"
#include "engines/cuda_limits.h"

namespace convx {

// Each pixel of y comes from one of x.
inline bool is_one_to_one(const ConvProblem& p) {
  return p.R == 1 && p.S == 1 && p.stride.h == 1 && p.stride.w == 1 && p.P == p.H && p.Q == p.W &&
         p.pad.top == 0 && p.pad.left == 0;
}

// NCHW: rows of a plane follow each other, planes are whole units of so many elements, and start
// at multiples of them, if the tensor does.
inline bool has_plane_units(const Strides& s, int64_t h, int64_t w, int64_t unit) {
  const bool dense = (w == 1 || s.w == 1) && (h == 1 || s.h == w);
  return dense && h * w % unit == 0 && s.n % unit == 0 && s.c % unit == 0;
}

struct PixelGrid {
  int64_t images, rows, columns;
};

// Elements from one pixel to the next where they follow each other so, or 0. Of an axis with one
// element the stride says nothing.
inline int64_t find_pixel_pitch(const Strides& s, const PixelGrid& grid, int64_t channels) {
  const int64_t pitch = grid.columns > 1  ? s.w
                        : grid.rows > 1   ? s.h
                        : grid.images > 1 ? s.n
                                          : channels;
  const bool dense = (channels == 1 || s.c == 1) && pitch >= channels &&
                     (grid.rows == 1 || s.h == grid.columns * pitch) &&
                     (grid.images == 1 || s.n == grid.rows * grid.columns * pitch);
  return dense ? pitch : 0;
}

inline int64_t find_x_pitch(const ConvProblem& p) {
  return find_pixel_pitch(p.x_strides, {p.N, p.H, p.W}, p.C);
}
inline int64_t find_y_pitch(const ConvProblem& p) {
  return find_pixel_pitch(p.y_strides, {p.N, p.P, p.Q}, p.K);
}

inline bool has_dense_pixels(const ConvProblem& p) {
  return is_one_to_one(p) && p.N > 0 && refuse_many_pixels(p).empty() && find_x_pitch(p) > 0 &&
         find_y_pitch(p) > 0;
}

// The same layer as one image of a few long rows, so that tiles end with neither rows nor images;
// or, where that cannot be, as it is.
inline ConvProblem flatten_pixels(const ConvProblem& problem, int64_t rows) {
  const int64_t pixels = problem.N * problem.H * problem.W;
  if (!has_dense_pixels(problem) || pixels % rows != 0) return problem;
  ConvProblem flat = problem;
  flat.N = 1;
  flat.H = flat.P = rows;
  flat.W = flat.Q = pixels / rows;
  const auto flatten = [&](int64_t pitch) {
    return Strides{pixels * pitch, 1, flat.W * pitch, pitch};
  };
  flat.x_strides = flatten(find_x_pitch(problem));
  flat.y_strides = flatten(find_y_pitch(problem));
  return flat;
}

}  // namespace convx
