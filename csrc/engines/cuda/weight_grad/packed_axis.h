// How positions (wgrad_geometry.h) run along one axis of the image. Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/arithmetic.h"

namespace convx {

// One axis of the image: the residues of its taps, and how far positions must reach.
struct PackedAxis {
  std::vector<int64_t> residues;    // of the taps' offsets modulo the stride, ascending
  std::vector<int64_t> residue_of;  // by tap, the index of its residue
  std::vector<int64_t> shift_of;    // by tap
  int64_t length;                   // positions along the axis, gaps included
  int64_t step;                     // taps between neighbours of the same residue
  int64_t step_shift;               // their distance in positions
};

// pad: the border before the image. extra: how much of it is more than the problem's padding.
inline PackedAxis make_packed_axis(int64_t extent, int64_t out, int64_t kernel, int64_t stride,
                                   int64_t dilation, int64_t pad, int64_t extra = 0) {
  PackedAxis axis;
  const int64_t common = std::gcd(stride, dilation);
  axis.step = stride / common;
  axis.step_shift = dilation / common;
  axis.length = out;
  for (int64_t tap = 0; tap < kernel; ++tap) axis.residues.push_back(tap * dilation % stride);
  std::sort(axis.residues.begin(), axis.residues.end());
  axis.residues.erase(std::unique(axis.residues.begin(), axis.residues.end()), axis.residues.end());
  for (int64_t tap = 0; tap < kernel; ++tap) {
    const int64_t residue = tap * dilation % stride, shift = tap * dilation / stride + extra;
    const auto found = std::lower_bound(axis.residues.begin(), axis.residues.end(), residue);
    axis.residue_of.push_back(found - axis.residues.begin());
    axis.shift_of.push_back(shift);
    // Beyond the last real pixel there are zeros; the next row's (or image's) leading zeros may
    // stand for them.
    const int64_t leading = std::max<int64_t>(ceil_div(pad - residue, stride), 0);
    const int64_t last = extent - 1 + pad - residue;
    const int64_t real = last < 0 ? 0 : last / stride + 1;
    const int64_t seen = out + shift;
    axis.length = std::max({axis.length, std::min(real, seen), seen - leading});
  }
  return axis;
}

}  // namespace convx
