// The steps of a pass of cuda_gemm: each function fills a kernel's parameters and launches it.
#pragma once

#include <algorithm>

#include "core/plan.h"
#include "cuda/launch.h"
#include "engines/cuda/gemm/blas_scope.h"
#include "engines/cuda/gemm/gemm_kernels.cuh"
#include "engines/cuda/gemm/gemm_shape.h"
#include "kernels/pixel_copies.h"

namespace convx {

// The pieces of the workspace.
struct GemmWorkspace {
  char* resident;
  char* columns;
  char* staging;
  char* partial;

  GemmWorkspace(const ConvProblem& problem, const GemmChunk& chunk, void* workspace) {
    resident = static_cast<char*>(workspace);
    columns = resident + resident_bytes(problem);
    staging = columns + chunk.column_bytes;
    partial = staging + chunk.staging_bytes;
  }
};

// A chunk of one phase: some images, rows of one lane (see StoredRows), and columns.
struct LatticePiece {
  int64_t lane;
  int64_t image, images;
  int64_t row, rows;  // rows within the lane
  int64_t column, columns;

  int64_t pixels() const { return images * columns; }
  int64_t pitch() const { return pad_pixels(pixels()); }
};

// One phase of the rows and one of the columns, and how they are cut into chunks.
struct GemmPhase {
  const GatherAxis& row;
  const StoredRows& stored;
  const GatherAxis& column;
  const GemmExtents extents;
  const GemmChunk chunk;
  const GemmWorkspace workspace;

  GemmPhase(const ConvProblem& problem, const GemmShape& shape, size_t row_phase,
            size_t column_phase, void* memory)
      : row(shape.rows[row_phase].axis),
        stored(shape.rows[row_phase].stored),
        column(shape.columns[column_phase]),
        extents(make_extents(problem, shape.view, row, column)),
        chunk(find_gemm_chunk(shape, problem, extents, row_phase, column_phase)),
        workspace(problem, chunk, memory) {}

  // A piece's rows of the tensor are read or written in place.
  bool is_in_place() const { return extents.in_place && chunk.images == 1; }
};

// Calls visit for every chunk of every lane.
template <typename Visit>
void visit_chunks(const ConvProblem& problem, const GemmPhase& phase, const Visit& visit) {
  const auto& [row, stored, column, extents, chunk, workspace] = phase;
  LatticePiece piece{};
  for (piece.lane = 0; piece.lane < stored.lanes; ++piece.lane) {
    const int64_t lane_rows = (row.count - piece.lane + stored.lanes - 1) / stored.lanes;
    for (piece.image = 0; piece.image < problem.N; piece.image += chunk.images) {
      piece.images = std::min(chunk.images, problem.N - piece.image);
      for (piece.column = 0; piece.column < column.count; piece.column += chunk.columns) {
        piece.columns = std::min(chunk.columns, column.count - piece.column);
        for (piece.row = 0; piece.row < lane_rows; piece.row += chunk.rows) {
          piece.rows = std::min(chunk.rows, lane_rows - piece.row);
          visit(piece);
        }
      }
    }
  }
}

// Builds a piece's columns, and returns them as an operand.
template <typename T>
GemmOperand fill_columns(const LaunchSite& site, const GatherView& view, const GemmPhase& phase,
                         const LatticePiece& piece, const void* source, bool transposed) {
  const auto& [row, stored, column, extents, chunk, workspace] = phase;
  ColumnParams p{};
  p.source = static_cast<const T*>(source) + piece.image * view.source_strides.n;
  p.columns = workspace.columns;
  p.strides = view.source_strides;
  p.source_h = static_cast<int>(view.source_h);
  p.source_w = static_cast<int>(view.source_w);
  p.channels = static_cast<int>(view.source_channels);
  p.stored_rows = static_cast<int>(stored.count(piece.rows));
  p.column_taps = static_cast<int>(column.taps);
  p.pixels = static_cast<int>(piece.pixels());
  p.pitch = static_cast<int>(piece.pitch());
  p.first_row = static_cast<int>(piece.row * stored.per_output);
  p.unit = static_cast<int>(stored.unit);
  p.outer_step = static_cast<int>(stored.outer_step);
  p.inner_step = static_cast<int>(stored.inner_step);
  p.row_origin = static_cast<int>(piece.lane * row.source_step + row.offset0);
  p.column_step = static_cast<int>(column.source_step);
  p.offset_step = static_cast<int>(column.offset_step);
  p.column_origin = static_cast<int>(piece.column * column.source_step + column.offset0);
  // The pitch is a multiple of four, so the last four pixels of a row may write past its end.
  p.sliding = column.source_step == 1 && column.offset_step == 1 && view.source_strides.w == 1 &&
              (piece.images == 1 || piece.columns % 4 == 0);
  // On the sliding path a group of four may begin past the last column of the only image.
  p.by_columns = FastDivmod(p.sliding && piece.images == 1 ? piece.pitch() : piece.columns);
  const int64_t lines = site.problem->groups * p.stored_rows * view.source_channels;
  const Grid grid(lines, (p.pixels + kColumnsPerBlock - 1) / kColumnsPerBlock);
  launch_kernel<fill_columns_kernel<MovedAs<T>>>(site, grid, kColumnThreads, 0, p);
  const int64_t row_elements = view.source_channels * column.taps * piece.pitch();
  return {workspace.columns, transposed, piece.pitch(), stored.count(piece.rows) * row_elements,
          stored.per_output * row_elements};
}

inline FilterParams make_filter_params(const ConvProblem& problem, const GatherView& view,
                                       const GatherAxis& row, const GatherAxis& column) {
  FilterParams p{};
  p.group_stride = problem.filters_per_group() * problem.w_strides.n;
  p.target_stride = view.weight_target_stride;
  p.source_stride = view.weight_source_stride;
  p.r_stride = problem.w_strides.h;
  p.s_stride = problem.w_strides.w;
  p.filters = static_cast<int>(view.target_channels);
  p.channels = static_cast<int>(view.source_channels);
  p.row_taps = static_cast<int>(row.taps);
  p.row_tap0 = static_cast<int>(row.tap0);
  p.row_tap_step = static_cast<int>(row.tap_step);
  p.column_taps = static_cast<int>(column.taps);
  p.column_tap0 = static_cast<int>(column.tap0);
  p.column_tap_step = static_cast<int>(column.tap_step);
  return p;
}

template <typename T>
void pack_filters(const LaunchSite& site, const GatherView& view, const GatherAxis& row,
                  const GatherAxis& column, const void* w, void* packed) {
  const FilterParams params = make_filter_params(*site.problem, view, row, column);
  const int64_t elements =
      site.problem->groups * view.target_channels * view.source_channels * row.taps * column.taps;
  using Moved = MovedAs<T>;
  launch_kernel<pack_filters_kernel<Moved>>(site, count_loop_blocks(elements, kMoveThreads),
                                            kMoveThreads, 0, params, static_cast<const Moved*>(w),
                                            static_cast<Moved*>(packed), elements);
}

// tensor: the target of a gather, or y for the weight gradient; both are the view's target.
inline MoveParams make_move_params(const ConvProblem& problem, const GatherView& view,
                                   const GemmPhase& phase, const LatticePiece& piece,
                                   void* tensor) {
  const auto& [row, stored, column, extents, chunk, workspace] = phase;
  MoveParams p{};
  p.tensor =
      static_cast<char*>(tensor) + piece.image * view.target_strides.n * size_of(problem.dtype);
  p.strides = view.target_strides;
  p.groups = static_cast<int>(problem.groups);
  p.channels = static_cast<int>(view.target_channels);
  p.rows = static_cast<int>(piece.rows);
  p.columns = static_cast<int>(piece.columns);
  p.images = static_cast<int>(piece.images);
  p.pitch = static_cast<int>(piece.pitch());
  p.row_step = stored.lanes * row.target_step;
  p.row_origin = row.target_start + piece.lane * row.target_step + piece.row * p.row_step;
  p.column_step = column.target_step;
  p.column_origin = column.target_start + piece.column * column.target_step;
  p.by_columns = FastDivmod(piece.columns);
  return p;
}

inline Grid move_grid(const MoveParams& p) {
  const int64_t pixels = int64_t{p.images} * p.columns;
  return Grid((pixels + kMoveThreads - 1) / kMoveThreads, std::min(p.rows, 65535),
              std::min(p.groups * p.channels, 65535));
}

// Copies output pixels' source pixels together, from `first` on (InPlaceForm::kStridedPixels).
inline void copy_source_pixels(const LaunchSite& site, const InPlaceShape& shape,
                               const void* source, void* copied, int64_t first, int64_t count) {
  const ConvProblem& problem = *site.problem;
  const Strides& from = problem.x_strides;
  const int64_t size = size_of(problem.dtype);
  copy_pixels(site, {.source = source,
                     .copied = copied,
                     .element_bytes = size,
                     .pixel_bytes = problem.C * size,
                     .padded_bytes = shape.source_pitch * size,
                     .rows = problem.P,
                     .columns = problem.Q,
                     .n = from.n,
                     .h = problem.stride.h * from.h,
                     .w = problem.stride.w * from.w,
                     .first = first,
                     .count = count});
}

// What the passes have in common.
class GemmPass {
 public:
  GemmPass(const LaunchSite& site, void* blas, const GemmShape& shape, const Buffers& buffers)
      : site_(site),
        problem_(*site.problem),
        blas_(site, blas),
        shape_(shape),
        view_(shape.view),
        buffers_(buffers),
        is_forward_(problem_.pass == Pass::kForward) {}

 protected:
  // The tensors of a gather.
  const void* source() const { return is_forward_ ? buffers_.x : buffers_.y; }
  void* target() const { return is_forward_ ? buffers_.y : buffers_.x; }
  const void* bias() const {
    return is_forward_ && problem_.epilogue.has_bias ? buffers_.bias : nullptr;
  }

  // Multiplies matrices in place, by cuBLASLt where it chooses a better algorithm than cuBLAS.
  void multiply_in_place(const BatchedGemm& gemm, void* blas_memory) const {
    const InPlaceShape& in_place = shape_.in_place;
    const LtExtras extras{{}, {}, blas_memory, in_place.blas_bytes, in_place.lt_rank};
    if (in_place.asks_lt && blas_.multiply_lt(gemm, extras)) return;
    blas_.multiply(gemm);
  }

  const LaunchSite& site_;
  const ConvProblem& problem_;
  const BlasScope blas_;
  const GemmShape& shape_;
  const GatherView& view_;
  const Buffers& buffers_;
  const bool is_forward_;
};

}  // namespace convx
