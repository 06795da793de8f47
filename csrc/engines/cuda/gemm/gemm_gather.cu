// Forward pass and input gradient with a column matrix: target row = packed filters * columns.
#include "engines/cuda/gemm/blas_scope.h"
#include "engines/cuda/gemm/gemm_passes.h"
#include "engines/cuda/gemm/gemm_steps.cuh"

namespace convx {
namespace {

template <typename T>
class GemmGather {
 public:
  GemmGather(const LaunchSite& site, void* blas, const GemmShape& shape, const Buffers& buffers)
      : site_(site),
        problem_(*site.problem),
        blas_(site, blas),
        shape_(shape),
        view_(shape.view),
        buffers_(buffers) {
    const bool forward = problem_.pass == Pass::kForward;
    source_ = forward ? buffers.x : buffers.y;
    target_ = forward ? buffers.y : buffers.x;
    bias_ = forward && problem_.has_bias ? buffers.bias : nullptr;
  }

  void run() {
    for (size_t row = 0; row < shape_.rows.size(); ++row) {
      for (size_t column = 0; column < shape_.columns.size(); ++column) run_phases(row, column);
    }
  }

 private:
  void run_phases(size_t row_phase, size_t column_phase) {
    const GatherAxis& row = shape_.rows[row_phase].axis;
    const StoredRows& stored = shape_.rows[row_phase].stored;
    const GatherAxis& column = shape_.columns[column_phase];
    const GemmExtents extents = make_extents(problem_, view_, row, column);
    const GemmChunk chunk = find_gemm_chunk(shape_, problem_, extents, row_phase, column_phase);
    const GemmWorkspace workspace(problem_, chunk, buffers_.workspace);
    const bool empty = row.taps == 0 || column.taps == 0;
    filters_ = {workspace.resident, false, view_.source_channels * row.taps * column.taps, 0, 0};
    filters_.group_stride = view_.target_channels * filters_.pitch;
    const FilterMatrix lying = find_filter_matrix(problem_, view_);
    if (problem_.taps() == 1 && !lying.packed) {
      filters_ = {buffers_.w, lying.transposed, lying.pitch, lying.group_stride, 0};
    } else if (!empty) {
      pack_filters<T>(site_, view_, row, column, buffers_.w, workspace.resident);
    }
    visit_chunks(problem_, stored, row, column, chunk, [&](const LatticePiece& piece) {
      MoveParams move = make_move_params(problem_, view_, stored, row, column, piece, target_);
      move.bias = bias_;
      move.zero = empty;
      if (!empty) {
        fill_columns<T>(site_, view_, stored, row, column, piece, source_, workspace.columns);
        const bool in_place = extents.in_place && chunk.images == 1;
        multiply(stored, row, column, piece, workspace, move, in_place);
        if (in_place) return add_bias(move);
        move.staged = workspace.staging;
      }
      launch_kernel<move_results_kernel<T>>(site_, move_grid(move), kMoveThreads, 0, move);
    });
  }

  // Row-major: result[filter][pixel] = filters[filter][reduction] * columns[reduction][pixel].
  // cuBLAS is column-major and sees every matrix transposed, so columns are the left operand.
  void multiply(const StoredRows& stored, const GatherAxis& row, const GatherAxis& column,
                const LatticePiece& piece, const GemmWorkspace& workspace, const MoveParams& move,
                bool in_place) {
    const int64_t row_elements = view_.source_channels * column.taps * piece.pitch();
    const int64_t reduction = row.taps * view_.source_channels * column.taps;
    const GemmOperand columns{workspace.columns, false, piece.pitch(),
                              stored.count(piece.rows) * row_elements,
                              stored.per_output * row_elements};
    BatchedGemm gemm{};
    gemm.k = reduction;
    gemm.groups = problem_.groups;
    gemm.rows = piece.rows;
    const Strides& strides = view_.target_strides;
    if (in_place && !is_row_in_place(strides, column.target_step, column.count)) {
      // channels_last: result[pixel][filter] is the transposed product.
      gemm.m = view_.target_channels;
      gemm.n = piece.pixels();
      gemm.left = filters_;
      gemm.right = columns;
      gemm.left.transposed = !gemm.left.transposed;
      gemm.right.transposed = true;
      gemm.pitch = column.target_step * strides.w;
    } else {
      gemm.m = piece.pixels();
      gemm.n = view_.target_channels;
      gemm.left = columns;
      gemm.right = filters_;
      gemm.pitch = in_place ? strides.c : piece.pitch();
    }
    if (in_place) {
      gemm.result = static_cast<T*>(move.tensor) + move.row_origin * strides.h +
                    move.column_origin * strides.w;
      gemm.group_stride = view_.target_channels * strides.c;
      gemm.row_stride = move.row_step * strides.h;
    } else {
      gemm.result = workspace.staging;
      gemm.row_stride = view_.target_channels * piece.pitch();
      gemm.group_stride = piece.rows * gemm.row_stride;
      gemm.wide_result = true;
    }
    blas_.multiply(gemm);
  }

  void add_bias(const MoveParams& move) {
    if (move.bias == nullptr) return;
    const unsigned lines = static_cast<unsigned>(move.rows) * move.groups * move.channels;
    launch_kernel<add_bias_kernel<T>>(site_, lines, kMoveThreads, 0, move);
  }

  const LaunchSite& site_;
  const ConvProblem& problem_;
  BlasScope blas_;
  const GemmShape& shape_;
  const GatherView& view_;
  const Buffers& buffers_;
  const void* source_;
  void* target_;
  const void* bias_;
  GemmOperand filters_{};
};

}  // namespace

void launch_gemm_gather(const LaunchSite& site, void* blas, const GemmShape& shape,
                        const Buffers& buffers) {
  if (site.problem->N == 0) return;
  visit_device_type(site.problem->dtype, [&](auto type) {
    GemmGather<decltype(type)>(site, blas, shape, buffers).run();
  });
}

}  // namespace convx
