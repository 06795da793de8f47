// 1x1 layers whose tensors are matrices as they are: contiguous planes [channel][pixel], or pixels
// at a constant pitch over all images, [pixel][channel]. Plain host code.
#pragma once

#include <optional>
#include <utility>

#include "core/problem.h"
#include "planning/refusals.h"

namespace convx {

// True if pixel (h, w) of y depends on pixel (h, w) of x alone.
inline bool is_one_to_one(const ConvProblem& p) {
  return p.R == 1 && p.S == 1 && p.stride.h == 1 && p.stride.w == 1 && p.P == p.H && p.Q == p.W &&
         p.pad.top == 0 && p.pad.left == 0;
}

// NCHW: true if planes have no gaps between their rows, are a multiple of `unit` elements long, and
// start at multiples of it if the tensor does.
inline bool has_plane_units(const Strides& s, int64_t h, int64_t w, int64_t unit) {
  const bool dense = (w == 1 || s.w == 1) && (h == 1 || s.h == w);
  return dense && h * w % unit == 0 && s.n % unit == 0 && s.c % unit == 0;
}

// The problem whose result is dW's transpose, [c][k], where x and y may change places: in layers
// that multiply each pixel of one with the same pixel of the other.
inline std::optional<ConvProblem> transpose_weight_grad(const ConvProblem& p) {
  if (!is_one_to_one(p) || p.groups > 1) return {};
  ConvProblem transposed = p;
  std::swap(transposed.C, transposed.K);
  std::swap(transposed.x_strides, transposed.y_strides);
  std::swap(transposed.w_strides.n, transposed.w_strides.c);
  return transposed;
}

struct PixelGrid {
  int64_t images, rows, columns;
};

// The constant pitch, in elements, from each pixel to the next over all images, or 0 if there is
// none. Strides of axes with one element are ignored.
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

// The same layer as one image of `rows` long rows, so that no tile is cut by the end of a row or an
// image. Returns the problem unchanged if its pixels have no constant pitch.
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
