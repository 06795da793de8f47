// Decides whether strips of a shape and width serve a problem. Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "engines/cuda/depthwise/depthwise_params.h"
#include "engines/cuda/depthwise/strip_shapes.h"

namespace convx {

inline bool matches_strip_shape(const StripShape& shape, const DepthwiseTensors& t) {
  const CudaAxis& row = t.row;
  const CudaAxis& column = t.column;
  return row.taps == shape.row_taps && column.taps == shape.column_taps && row.offset_step == 1 &&
         column.offset_step == 1 && row.source_step == shape.stride &&
         column.source_step == shape.stride && column.offset0 == -shape.left;
}

// Source rows are read as whole vectors. Target rows, which have no gaps between them (see
// find_depthwise_layout), are accessed in pieces of `piece` elements. Strides of axes with one
// element do not matter.
inline bool can_cut_strips(const ConvProblem& problem, const DepthwiseTensors& t,
                           const StripShape& shape, int columns, int64_t piece) {
  if (!matches_strip_shape(shape, t)) return false;
  const int64_t vector = StripReads(shape, size_of(problem.dtype), columns).vector;
  const auto divides = [](int64_t size, auto... extents) { return ((extents % size == 0) && ...); };
  return divides(vector, t.source_width, problem.N > 1 ? t.source_n : 0,
                 problem.C > 1 ? t.source_c : 0, t.source_height > 1 ? t.source_h : 0) &&
         divides(piece, t.column.count, problem.N > 1 ? t.target_n : 0,
                 problem.K > 1 ? t.target_c : 0);
}

}  // namespace convx
