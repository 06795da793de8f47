// Stages source rows in shared memory, with zeros for padding.
#pragma once

#include "device/convert.cuh"
#include "device/cp_async.cuh"
#include "engines/cuda/depthwise/depthwise_geometry.h"

namespace convx {

// A unit of a line, in the first row that a thread copies, for a plane at offset 0.
template <typename T>
struct UnitColumn {
  const T* source;  // may lie outside the image
  T* shared;
  int row, y;   // row of the tile, and of the image
  bool inside;  // the unit lies within the image's columns; units never straddle the edge
};

// Copies the unit in every lines_per_pass-th row of each plane.
template <int kBytes, typename T, typename PlaneOffset>
__device__ __forceinline__ void stage_unit(const StagePlan& stage, const DepthwiseTensors& t,
                                           int planes, const UnitColumn<T>& column,
                                           const PlaneOffset& plane_offset) {
  const int64_t source_step = stage.lines_per_pass * t.source_h;
  const int shared_step = stage.lines_per_pass * stage.line_pitch;
  const unsigned height = column.inside ? t.source_height : 0;
  for (int plane = 0; plane < planes; ++plane) {
    const T* source = column.source + plane_offset(plane);
    T* shared = column.shared + plane * stage.rows * stage.line_pitch;
    int y = column.y;
#pragma unroll 4
    for (int row = column.row; row < stage.rows; row += stage.lines_per_pass) {
      copy_or_clear<kBytes>(shared, source, static_cast<unsigned>(y) < height);
      shared += shared_step;
      source += source_step;
      y += stage.lines_per_pass;
    }
  }
}

// Stages single 16-bit elements, which go through registers. Several rows, of any planes, are
// loaded at once to have more loads in flight.
template <typename T, typename PlaneOffset>
__device__ __forceinline__ void stage_element(const StagePlan& stage, const DepthwiseTensors& t,
                                              int planes, const UnitColumn<T>& column,
                                              const PlaneOffset& plane_offset) {
  constexpr int kBatch = 8;
  const int64_t source_step = stage.lines_per_pass * t.source_h;
  const int shared_step = stage.lines_per_pass * stage.line_pitch;
  const unsigned height = column.inside ? t.source_height : 0;
  int plane = 0;
  int row = column.row;  // less than stage.rows
  const T* source = column.source + plane_offset(0);
  int place = 0;  // relative to column.shared
  while (plane < planes) {
    T values[kBatch];
    int places[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool there = plane < planes;
      const int y = column.y + row - column.row;
      values[i] = round_to<T>(0.0f);
      if (there && static_cast<unsigned>(y) < height) values[i] = *source;
      places[i] = there ? place : -1;
      row += stage.lines_per_pass;
      place += shared_step;
      source += source_step;
      if (row >= stage.rows) {
        ++plane;
        row = column.row;
        place = plane * stage.rows * stage.line_pitch;
        if (plane < planes) source = column.source + plane_offset(plane);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (places[i] >= 0) column.shared[places[i]] = values[i];
    }
  }
}

// Copies the rows of a tile's planes. find_unit(unit, column) sets the source in row 0 of a plane
// at offset 0, the position in the first line, and whether the unit is inside. plane_offset(plane)
// returns the offset of a plane in elements.
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
    column.row = first_row;
    column.y = row_base + first_row;
    column.source += column.y * t.source_h;
    column.shared += first_row * stage.line_pitch;
    switch (stage.unit * static_cast<int>(sizeof(T))) {
      case 16:
        stage_unit<16>(stage, t, planes, column, plane_offset);
        break;
      case 8:
        stage_unit<8>(stage, t, planes, column, plane_offset);
        break;
      case 4:
        stage_unit<4>(stage, t, planes, column, plane_offset);
        break;
      default:
        if constexpr (sizeof(T) == 2) stage_element(stage, t, planes, column, plane_offset);
        break;
    }
  }
}

}  // namespace convx
