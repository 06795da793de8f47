// The kernels around the inner convolutions (phases_shape.h).
//
//     interleave_phases_kernel  results of the inner convolution  ->  target (kChannels)
//     transpose_kernel          phases_transpose.cuh (kTransposed)
//     scan_source_kernel        sets a flag if the source has infinities or NaN (kRows)
//     recompute_phases_kernel   recomputes results that are NaN (kRows)
//
// Interleaving, one row with stride 2:
//
//     results  phase 0   a0 a1 a2 a3 ...          channels_last: an element is a unit of channels
//              phase 1   b0 b1 b2 b3 ...          NCHW: an element is one value
//     target             a0 b0 a1 b1 a2 b2 a3 b3 ...     (a phase without taps has zeros)
//
// A thread stores units of up to 16 bytes, neighbouring threads neighbouring units, so that every
// sector of the target is written once and whole. It loads all of its units before it stores the
// first. In NCHW these are the same columns of four channels, which share the search for phases and
// lattice points: instructions limited this kernel to half of the memory's bandwidth when each unit
// was searched for (H200, 2026-11-18). No shared memory.
#pragma once

#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "engines/cuda/input_grad/phases_shape.h"

namespace convx {

// Elements of the target that a thread stores at once.
template <typename T, int kUnit>
struct alignas(kUnit * sizeof(T)) PhaseUnit {
  T values[kUnit];
};

struct TargetPlace {
  int image, channel, row, column;

  __device__ int64_t offset(const Strides& s) const {
    return image * s.n + channel * s.c + row * s.h + column * s.w;
  }
};

template <int kUnit, bool kPixels>
__device__ __forceinline__ TargetPlace locate_unit(const InterleaveParams& p, int index) {
  TargetPlace place;
  const int start = p.by_units.split(index) * kUnit;
  if constexpr (kPixels) {
    place.channel = start;
    place.column = p.by_columns.split(index);
    place.row = p.by_rows.split(index);
  } else {
    place.column = start;
    place.row = p.by_rows.split(index);
    place.channel = p.by_channels.split(index) * kPlaneChannels;
  }
  place.image = index;
  return place;
}

// A target value by the definition.
template <typename T>
__device__ __noinline__ T recompute_phase(const InterleaveParams& p, TargetPlace place) {
  const Strides &y = p.source_strides, &w = p.filter_strides;
  int group = place.channel;
  const int channel = p.by_group_channels.split(group);
  const int row_step = static_cast<int>(p.rows.by_step.divisor);
  const int column_step = static_cast<int>(p.columns.by_step.divisor);
  accumulate_t<T> sum = 0;
  for (int r = 0; r < p.kernel_rows; ++r) {
    const int row = place.row + p.rows.pad - r * p.dilation_h;
    if (row < 0 || row % row_step != 0 || row / row_step >= p.source_height) continue;
    for (int s = 0; s < p.kernel_columns; ++s) {
      const int column = place.column + p.columns.pad - s * p.dilation_w;
      if (column < 0 || column % column_step != 0 || column / column_step >= p.source_width) {
        continue;
      }
      for (int f = 0; f < p.group_filters; ++f) {
        const int64_t k = static_cast<int64_t>(group) * p.group_filters + f;
        sum += to_accumulate(static_cast<const T*>(
                   p.source)[place.image * y.n + k * y.c + row / row_step * y.h +
                             column / column_step * y.w]) *
               to_accumulate(
                   static_cast<const T*>(p.filters)[k * w.n + channel * w.c + r * w.h + s * w.w]);
      }
    }
  }
  return round_to<T>(sum);
}

template <typename T, int kUnit>
__device__ __forceinline__ bool has_nan(const PhaseUnit<T, kUnit>& unit) {
  bool found = false;
#pragma unroll
  for (const T& value : unit.values) {
    const auto wide = to_accumulate(value);
    found = found || !(wide == wide);
  }
  return found;
}

// The unit with values that are NaN recomputed. first: the place of its first value.
template <typename T, int kUnit, bool kPixels>
__device__ __noinline__ PhaseUnit<T, kUnit> recompute_unit(const InterleaveParams& p,
                                                           TargetPlace first,
                                                           PhaseUnit<T, kUnit> unit) {
#pragma unroll 1
  for (int e = 0; e < kUnit; ++e) {
    const auto wide = to_accumulate(unit.values[e]);
    if (wide == wide) continue;
    TargetPlace place = first;
    (kPixels ? place.channel : place.column) += e;
    unit.values[e] = recompute_phase<T>(p, place);
  }
  return unit;
}

template <typename T, int kUnit>
__device__ __forceinline__ PhaseUnit<T, kUnit> make_zeros() {
  PhaseUnit<T, kUnit> unit;
#pragma unroll
  for (T& value : unit.values) value = round_to<T>(accumulate_t<T>{0});
  return unit;
}

// Channels of one pixel.
template <typename T, int kUnit>
__device__ __forceinline__ PhaseUnit<T, kUnit> load_pixel(const InterleaveParams& p,
                                                          const TargetPlace& place) {
  int shifted_row = place.row + p.rows.pad, shifted_column = place.column + p.columns.pad;
  const int row_phase = p.rows.by_step.split(shifted_row);
  const int column_phase = p.columns.by_step.split(shifted_column);
  if (row_phase >= p.rows.kept || column_phase >= p.columns.kept) return make_zeros<T, kUnit>();
  int group = place.channel;
  const int channel = p.by_group_channels.split(group);
  const int offset = group * p.result_group + channel * p.result_c +
                     row_phase * p.result_row_phase + column_phase * p.result_column_phase +
                     p.rows.by_step.divide(place.row + p.rows.frame) * p.result_h +
                     p.columns.by_step.divide(place.column + p.columns.frame) * p.result_w;
  const T* from = static_cast<const T*>(p.results) + place.image * p.result_n + offset;
  return *reinterpret_cast<const PhaseUnit<T, kUnit>*>(from);
}

template <typename T, int kUnit>
__device__ __forceinline__ void interleave_pixels(const InterleaveParams& p) {
  constexpr int kThreadUnits = 4;  // units that a thread loads before it stores them
  constexpr int kBlockUnits = kThreadUnits * kPhasesThreads;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockUnits + threadIdx.x;
       first < p.units; first += static_cast<int64_t>(gridDim.x) * kBlockUnits) {
    PhaseUnit<T, kUnit> units[kThreadUnits];
    T* targets[kThreadUnits];
#pragma unroll
    for (int u = 0; u < kThreadUnits; ++u) {
      const int64_t i = first + u * kPhasesThreads;
      if (i >= p.units) break;
      const TargetPlace place = locate_unit<kUnit, true>(p, static_cast<int>(i));
      targets[u] = static_cast<T*>(p.target) + place.offset(p.target_strides);
      units[u] = load_pixel<T, kUnit>(p, place);
    }
#pragma unroll
    for (int u = 0; u < kThreadUnits; ++u) {
      const int64_t i = first + u * kPhasesThreads;
      if (i >= p.units) break;
      if (p.recomputes && has_nan(units[u])) {
        const TargetPlace place = locate_unit<kUnit, true>(p, static_cast<int>(i));
        units[u] = recompute_unit<T, kUnit, true>(p, place, units[u]);
      }
      *reinterpret_cast<PhaseUnit<T, kUnit>*>(targets[u]) = units[u];
    }
  }
}

// The same columns of kPlaneChannels channels, whose results differ by result_c. Along a row, the
// phase and the lattice point advance without divisions. Channels of all groups are equally spaced.
template <typename T, int kUnit>
__device__ __forceinline__ void interleave_columns(const InterleaveParams& p, int index) {
  const TargetPlace place = locate_unit<kUnit, false>(p, index);
  const int channels = min(kPlaneChannels, p.channels - place.channel);
  PhaseUnit<T, kUnit> units[kPlaneChannels];
#pragma unroll
  for (PhaseUnit<T, kUnit>& unit : units) unit = make_zeros<T, kUnit>();
  int shifted = place.row + p.rows.pad;
  const int row_phase = p.rows.by_step.split(shifted);
  if (row_phase < p.rows.kept) {
    const T* from = static_cast<const T*>(p.results) + place.image * p.result_n +
                    (place.channel * p.result_c + row_phase * p.result_row_phase +
                     p.rows.by_step.divide(place.row + p.rows.frame) * p.result_h);
    shifted = place.column + p.columns.pad;
    int column_phase = p.columns.by_step.split(shifted);
    int column = place.column + p.columns.frame;  // lattice point
    int residue = p.columns.by_step.split(column);
    const int step = static_cast<int>(p.columns.by_step.divisor);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) {
      const int offset = column_phase * p.result_column_phase + column;
#pragma unroll
      for (int c = 0; c < kPlaneChannels; ++c) {
        if (column_phase < p.columns.kept && c < channels) {
          units[c].values[e] = from[c * p.result_c + offset];
        }
      }
      if (++column_phase == step) column_phase = 0;
      if (++residue == step) residue = 0, ++column;
    }
  }
  T* to = static_cast<T*>(p.target) + place.offset(p.target_strides);
#pragma unroll
  for (int c = 0; c < kPlaneChannels; ++c) {
    if (c >= channels) break;
    if (p.recomputes && has_nan(units[c])) {
      TargetPlace own = place;
      own.channel += c;
      units[c] = recompute_unit<T, kUnit, false>(p, own, units[c]);
    }
    *reinterpret_cast<PhaseUnit<T, kUnit>*>(to + c * p.target_strides.c) = units[c];
  }
}

template <typename T, int kUnit, bool kPixels>
__global__ void __launch_bounds__(kPhasesThreads)
    interleave_phases_kernel(const __grid_constant__ InterleaveParams p) {
  wait_for_kernels_before();
  let_next_kernel_start();
  if constexpr (kPixels) {
    interleave_pixels<T, kUnit>(p);
  } else {
    const auto step = static_cast<int64_t>(gridDim.x) * kPhasesThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPhasesThreads + threadIdx.x; i < p.units;
         i += step) {
      interleave_columns<T, kUnit>(p, static_cast<int>(i));
    }
  }
}

// kRows: see ScanParams. A thread reads pieces of 2 to 16 bytes. Threads that find a value all
// store the same.
template <typename Piece>
__global__ void __launch_bounds__(kPhasesThreads)
    scan_source_kernel(const __grid_constant__ ScanParams p) {
  wait_for_kernels_before();
  let_next_kernel_start();
  constexpr int kWords = sizeof(Piece) < 4 ? 1 : sizeof(Piece) / 4;
  union Words {
    uint32_t words[kWords];
    Piece piece;
  };
  const auto step = static_cast<int64_t>(gridDim.x) * kPhasesThreads;
  const Strides& s = p.source_strides;
  bool found = false;
#pragma unroll 1
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPhasesThreads + threadIdx.x; i < p.units;
       i += step) {
    int image = static_cast<int>(i);
    const int channel = p.by_units.split(image) * p.unit;
    const int column = p.by_columns.split(image);
    const int row = p.by_rows.split(image);
    const int64_t at = image * s.n + channel * s.c + row * s.h + column * s.w;
    Words unit{};
    unit.piece =
        *reinterpret_cast<const Piece*>(static_cast<const char*>(p.source) + at * p.element_bytes);
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      if (p.element_bytes == 8 && word % 2 == 0) continue;  // the low word of a float64 value
      const uint32_t bits = unit.words[word];
      found =
          found || (bits & p.exponent) == p.exponent || (bits & p.high_exponent) == p.high_exponent;
    }
  }
  if (found) *p.flag = 1;
}

// kRows: recomputes the results that are NaN, if the source had infinities or NaN.
template <typename T>
__global__ void __launch_bounds__(kPhasesThreads)
    recompute_phases_kernel(const __grid_constant__ InterleaveParams p) {
  wait_for_kernels_before();
  let_next_kernel_start();
  if (*p.flag == 0) return;
  const auto step = static_cast<int64_t>(gridDim.x) * kPhasesThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPhasesThreads + threadIdx.x; i < p.units;
       i += step) {
    const TargetPlace place = locate_unit<1, true>(p, static_cast<int>(i));
    T& value = static_cast<T*>(p.target)[place.offset(p.target_strides)];
    const auto wide = to_accumulate(value);
    if (!(wide == wide)) value = recompute_phase<T>(p, place);
  }
}

}  // namespace convx
