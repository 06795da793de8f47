// How positions run along the axes of the image, and how many groups their taps make. Plain host
// code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/arithmetic.h"

namespace convx {

// How positions (wgrad_geometry.h) run along one axis of the image: the residues of its taps, and
// how far positions must reach.
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

// Along an axis, taps of the same residue are `step` apart. `longer` residues have groups_of_most
// groups of taps, the other ones groups_of_rest.
struct AxisCounts {
  int residues, longer, groups_of_most, groups_of_rest;
  int most_taps;  // of a group

  AxisCounts() = default;
  AxisCounts(int taps, int64_t step, int group_taps) {
    residues = static_cast<int>(std::min<int64_t>(step, taps));
    longer = (taps - 1) % residues + 1;
    const int most = (taps - 1) / residues + 1, rest = longer == residues ? most : most - 1;
    groups_of_most = (most + group_taps - 1) / group_taps;
    groups_of_rest = (rest + group_taps - 1) / group_taps;
    most_taps = std::min(most, group_taps);
  }
};
// The numbers of the tap groups of both axes, without the groups.
struct TapCounts {
  AxisCounts rows, columns;
  int most_taps;

  // Blocks of `most` groups of one residue.
  int blocks(int most) const {
    const auto count = [&](int residues, int row_groups) {
      const auto part = [&](int others, int groups) {
        if (residues * others == 0) return 0;
        return residues * others * ((row_groups * groups + most - 1) / most);
      };
      return part(columns.longer, columns.groups_of_most) +
             part(columns.residues - columns.longer, columns.groups_of_rest);
    };
    return count(rows.longer, rows.groups_of_most) +
           count(rows.residues - rows.longer, rows.groups_of_rest);
  }
  int groups() const { return blocks(1); }
  int most_residue_groups() const { return rows.groups_of_most * columns.groups_of_most; }
};

}  // namespace convx
