// Bringing source rows into shared memory, zeros where they are padding.
#pragma once

#include "device/convert.cuh"
#include "device/cp_async.cuh"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// A thread's share of one plane: one unit of every lines_per_pass-th row.
template <typename T>
struct UnitColumn {
  const T* source;  // in the first of these rows, which may lie outside the image
  T* shared;
  int y, rows;  // position of the first row in the image, and how many rows of the tile are left
  bool inside;  // the unit lies in the image's columns; units never straddle the edge
};

template <int kBytes, typename T>
__device__ __forceinline__ void stage_unit(const StagePlan& stage, const DepthwiseTensors& t,
                                           UnitColumn<T> column) {
  const int64_t source_step = stage.lines_per_pass * t.source_h;
  const int shared_step = stage.lines_per_pass * stage.line_pitch;
  const unsigned height = column.inside ? t.source_height : 0;
  if constexpr (kBytes >= 4) {
#pragma unroll 4
    for (int row = 0; row < column.rows; row += stage.lines_per_pass) {
      copy_or_clear<kBytes>(column.shared, column.source,
                            static_cast<unsigned>(column.y + row) < height);
      column.shared += shared_step;
      column.source += source_step;
    }
  } else {
    // Single 16-bit elements go through registers: several at a time, to have as many loads under
    // way.
    constexpr int kBatch = 8;
    for (int first = 0; first < column.rows; first += kBatch * stage.lines_per_pass) {
      T values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = first + i * stage.lines_per_pass;
        values[i] = round_to<T>(0.0f);
        if (row < column.rows && static_cast<unsigned>(column.y + row) < height) {
          values[i] = *column.source;
        }
        column.source += source_step;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * stage.lines_per_pass < column.rows) *column.shared = values[i];
        column.shared += shared_step;
      }
    }
  }
}

// Copies the rows of a tile's planes. find_unit(unit, column) sets the source in row 0 of a plane
// at offset 0, the place in the first line and whether the unit is inside; plane_offset(plane) says
// where a plane lies, in elements.
template <typename T, typename FindUnit, typename PlaneOffset>
__device__ inline void stage_lines(const StagePlan& stage, const DepthwiseTensors& t, int planes,
                                   int row_base, const FindUnit& find_unit,
                                   const PlaneOffset& plane_offset) {
  int first_row = threadIdx.x;
  const int first_unit = stage.by_units.split(first_row);
  if (first_row >= stage.lines_per_pass) return;
  for (int unit = first_unit; unit < stage.units; unit += kDepthwiseThreads) {
    UnitColumn<T> column;
    find_unit(unit, column);
    column.y = row_base + first_row;
    column.rows = stage.rows - first_row;
    column.source += column.y * t.source_h;
    column.shared += first_row * stage.line_pitch;
    const auto copy = [&](auto bytes) {
      for (int plane = 0; plane < planes; ++plane) {
        UnitColumn<T> in_plane = column;
        in_plane.source += plane_offset(plane);
        in_plane.shared += plane * stage.rows * stage.line_pitch;
        stage_unit<decltype(bytes)::value>(stage, t, in_plane);
      }
    };
    switch (stage.unit * static_cast<int>(sizeof(T))) {
      case 16:
        copy(std::integral_constant<int, 16>{});
        break;
      case 8:
        copy(std::integral_constant<int, 8>{});
        break;
      case 4:
        copy(std::integral_constant<int, 4>{});
        break;
      default:
        if constexpr (sizeof(T) == 2) copy(std::integral_constant<int, 2>{});
        break;
    }
  }
}

}  // namespace convx
