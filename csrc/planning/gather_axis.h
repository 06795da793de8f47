// One axis of a gather (core/gather_view.h), rearranged so that the source values of neighbouring
// outputs overlap by all but one, whatever the stride and the dilation.
//
// The taps of a phase are an arithmetic progression, so with j counting them by growing offset
//     source position of target lattice index i under tap j  =  i*st + j*d + offset0 .
// Let g = gcd(st, d). Writing i = e*b + lane with e = d/g lanes, and j = q*m + cls with q = st/g
// classes, gives
//     source position  =  M*(b + m)  +  lane*st + cls*d + offset0 ,     M = st*e = d*q .
// For a fixed lane and class, taps m and outputs b step by the same M. Source values that are M
// apart are stored side by side, so each tap reads the values of the tap before, shifted by one.
// Only values that some tap reads are stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/arithmetic.h"
#include "core/gather_view.h"

namespace convx {

struct GatherAxis {
  int64_t count = 0;         // target lattice points
  int64_t target_start = 0;  // target position of lattice index i: target_start + i*target_step
  int64_t target_step = 1;
  int64_t source_step = 1;  // st
  int64_t taps = 0;         // may be 0: no tap reaches these target points
  int64_t tap0 = 0;         // kernel index of tap j: tap0 + j*tap_step; the step may be negative
  int64_t tap_step = 1;
  int64_t offset0 = 0;
  int64_t offset_step = 1;  // d, positive
  int64_t lanes = 1;        // e
  int64_t classes = 1;      // q
  int64_t period = 1;       // M

  // Lattice points of a lane; the last lanes may have one fewer.
  int64_t count_per_lane() const { return (count + lanes - 1) / lanes; }
};

// With slide = false every tap is a class of its own and there is one lane. That stores more
// values, but wastes less of a tile where a large dilation would make the lanes short.
inline GatherAxis make_gather_axis(const AxisPhase& phase, bool slide) {
  GatherAxis axis;
  axis.count = phase.count;
  axis.target_start = phase.target_start;
  axis.target_step = phase.target_step;
  axis.source_step = phase.source_step;
  axis.taps = static_cast<int64_t>(phase.taps.size());
  axis.period = axis.source_step;
  if (axis.taps == 0) return axis;
  const AxisTap& first = phase.taps.front();
  const AxisTap& last = phase.taps.back();
  const bool ascending = first.offset <= last.offset;
  axis.tap0 = ascending ? first.tap : last.tap;
  axis.offset0 = ascending ? first.offset : last.offset;
  if (axis.taps == 1) return axis;
  const int64_t tap_step = phase.taps[1].tap - first.tap;
  const int64_t offset_step = phase.taps[1].offset - first.offset;
  axis.tap_step = ascending ? tap_step : -tap_step;
  axis.offset_step = ascending ? offset_step : -offset_step;
  const int64_t divisor = std::gcd(axis.source_step, axis.offset_step);
  const int64_t classes = axis.source_step / divisor;
  if (!slide || axis.taps <= classes) {
    axis.classes = axis.taps;
    return axis;
  }
  axis.lanes = axis.offset_step / divisor;
  axis.classes = classes;
  axis.period = axis.source_step * axis.lanes;
  return axis;
}

// Both axes of a phase, with every tap a class of its own.
struct GatherPhase {
  GatherAxis rows, columns;

  int64_t taps() const { return rows.taps * columns.taps; }
};

inline std::vector<GatherPhase> make_gather_phases(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  std::vector<GatherPhase> phases;
  phases.reserve(view.rows.size() * view.columns.size());
  for (const AxisPhase& rows : view.rows) {
    const GatherAxis axis = make_gather_axis(rows, false);
    for (const AxisPhase& columns : view.columns) {
      phases.push_back({axis, make_gather_axis(columns, false)});
    }
  }
  return phases;
}

// Cuts a phase into at most `most` bands of rows, each a phase of its own.
inline std::vector<GatherPhase> cut_bands(const GatherPhase& phase, int64_t most) {
  const int64_t count = ceil_div(phase.rows.count, most);
  std::vector<GatherPhase> bands;
  for (int64_t first = 0; first < phase.rows.count; first += count) {
    GatherAxis& rows = bands.emplace_back(phase).rows;
    rows.count = std::min(count, phase.rows.count - first);
    rows.target_start += first * rows.target_step;
    rows.offset0 += first * rows.source_step;
  }
  return bands;
}

// The elements that a phase moves. If its target pixels are not contiguous, the elements between
// them count too, up to a sector, because memory is written in sectors.
struct PhaseTraffic {
  double source, filters, target;

  PhaseTraffic(const ConvProblem& p, const GatherAxis& rows, const GatherAxis& columns) {
    const GatherTensors of = make_gather_tensors(p);
    const int64_t sector = 32 / size_of(p.dtype);
    const int64_t apart = of.target_strides.c == 1 ? 1 : std::min(columns.target_step, sector);
    const double groups = static_cast<double>(p.groups);
    const double images = groups * static_cast<double>(p.N);
    const int64_t source_rows =
        (rows.count - 1) * rows.source_step + (rows.taps - 1) * rows.offset_step + 1;
    source = images * static_cast<double>(of.source_channels * of.source_w *
                                          std::min(of.source_h, source_rows));
    filters = groups * static_cast<double>(of.source_channels * of.target_channels) *
              static_cast<double>(rows.taps * columns.taps);
    target = images * static_cast<double>(of.target_channels * rows.count * columns.count * apart);
  }
  double bytes(const ConvProblem& p) const {
    return (source + filters + target) * static_cast<double>(size_of(p.dtype));
  }

  // Cycles that cuda_lines and cuda_pixels spend besides their tiles. Grouped layers, whose tiles
  // are short: packing the filters and, with split-K, the launch that adds the slices and its
  // scattered stores to channels_last targets. Fitted to 3x3 layers of 5 to 32 groups at batch 1
  // (H200, November 2026). The other constants were fitted to dense layers without these terms, so
  // dense layers have only the packing of filters that are larger than those layers'.
  double group_cycles(const ConvProblem& p, int sm_count, int64_t packed_bytes, int splits,
                      double sum_launch_cycles) const {
    constexpr double kPackedBytes = 4;  // per cycle
    constexpr double kStoreCycles = 2.9;
    constexpr double kFittedBytes = 4e6, kDensePackedBytes = 8;
    if (p.groups == 1) {
      const double more = static_cast<double>(packed_bytes) - kFittedBytes;
      return std::max(0.0, more) / sm_count / kDensePackedBytes;
    }
    const double packing = static_cast<double>(packed_bytes) / sm_count / kPackedBytes;
    if (splits == 1) return packing;
    const double scattered = make_gather_tensors(p).target_strides.c == 1 ? target : 0;
    return packing + sum_launch_cycles + kStoreCycles * scattered / sm_count;
  }
};

// GatherAxis in 32 bits, as a kernel parameter.
struct CudaAxis {
  int count;  // outputs
  int taps, tap0, tap_step;
  int source_step, offset0, offset_step;
  int lanes, classes, period;
  int class_taps, longer_classes;  // the first longer_classes classes have one tap more

  int most_class_taps() const { return class_taps + (longer_classes > 0 ? 1 : 0); }

  // Source positions from the first to the last that `outputs` neighbouring outputs read.
  int64_t count_span(int64_t outputs) const {
    return (outputs - 1) * source_step + int64_t{taps - 1} * offset_step + 1;
  }

#ifdef __CUDACC__
  __device__ int count_taps(int index) const { return class_taps + (index < longer_classes); }
#endif
};

inline CudaAxis make_cuda_axis(const GatherAxis& axis) {
  CudaAxis a{};
  a.count = narrow(axis.count);
  a.taps = narrow(axis.taps), a.tap0 = narrow(axis.tap0), a.tap_step = narrow(axis.tap_step);
  a.source_step = narrow(axis.source_step);
  a.offset0 = narrow(axis.offset0), a.offset_step = narrow(axis.offset_step);
  a.lanes = narrow(axis.lanes), a.classes = narrow(axis.classes), a.period = narrow(axis.period);
  a.class_taps = a.taps / a.classes, a.longer_classes = a.taps % a.classes;
  return a;
}

}  // namespace convx
