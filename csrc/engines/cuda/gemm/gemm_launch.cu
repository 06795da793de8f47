// Launches cuda_gemm. Forward passes and input gradients with a column matrix are computed here:
// target row = packed filters * columns.
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/gemm/gemm_shape.h"
#include "engines/cuda/gemm/gemm_steps.cuh"

namespace convx {
namespace {

template <typename T>
class GemmGather : GemmPass {
 public:
  using GemmPass::GemmPass;

  void run() {
    for (size_t row = 0; row < shape_.rows.size(); ++row) {
      for (size_t column = 0; column < shape_.columns.size(); ++column) run_phases(row, column);
    }
  }

 private:
  void run_phases(size_t row_phase, size_t column_phase) {
    const GemmPhase phase(problem_, shape_, row_phase, column_phase, buffers_.workspace);
    const GatherAxis &row = phase.row, &column = phase.column;
    const bool empty = row.taps == 0 || column.taps == 0;
    void* const packed = phase.workspace.resident;
    filters_ = {packed, false, view_.source_channels * row.taps * column.taps, 0, 0};
    filters_.group_stride = view_.target_channels * filters_.pitch;
    const FilterMatrix lying = find_filter_matrix(problem_, view_);
    if (problem_.taps() == 1 && !lying.packed) {
      filters_ = {buffers_.w, lying.transposed, lying.pitch, lying.group_stride, 0};
    } else if (!empty) {
      pack_filters<T>(site_, view_, row, column, buffers_.w, packed);
    }
    visit_chunks(problem_, phase, [&](const LatticePiece& piece) {
      MoveParams move = make_move_params(problem_, view_, phase, piece, target());
      move.bias = bias();
      move.zero = empty;
      if (!empty) {
        const GemmOperand columns = fill_columns<T>(site_, view_, phase, piece, source(), false);
        multiply(phase, piece, columns, move);
        if (phase.is_in_place()) return add_bias(move);
        move.staged = phase.workspace.staging;
      }
      launch_kernel<move_results_kernel<T>>(site_, move_grid(move), kMoveThreads, 0, move);
    });
  }

  // Row-major: result[filter][pixel] = filters[filter][reduction] * columns[reduction][pixel].
  // cuBLAS is column-major and sees every matrix transposed, so columns are the left operand.
  void multiply(const GemmPhase& phase, const LatticePiece& piece, const GemmOperand& columns,
                const MoveParams& move) {
    const GatherAxis& column = phase.column;
    const bool in_place = phase.is_in_place();
    BatchedGemm gemm{};
    gemm.k = phase.row.taps * view_.source_channels * column.taps;
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
      gemm.result = phase.workspace.staging;
      gemm.row_stride = view_.target_channels * piece.pitch();
      gemm.group_stride = piece.rows * gemm.row_stride;
      gemm.wide_result = true;
    }
    blas_.multiply(gemm);
  }

  void add_bias(const MoveParams& move) {
    if (move.bias == nullptr) return;
    const unsigned lines = static_cast<unsigned>(move.rows) * move.groups * move.channels;
    if constexpr (sizeof(T) > 2) {
      launch_kernel<add_bias_kernel<T>>(site_, lines, kMoveThreads, 0, move);
    } else {
      throw_launch_error(site_, "choosing a kernel", "16-bit results are not in place");
    }
  }

  GemmOperand filters_{};
};

}  // namespace

void launch_cuda_gemm(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const ConvProblem& problem = *site.problem;
  void* const blas = site.get_blas();
  const GemmShape& shape = geometry_of<GemmShape>(plan);
  if (problem.pass == Pass::kWeightGrad) {
    launch_gemm_weight_grad(site, blas, shape, buffers);
  } else if (shape.in_place.form != InPlaceForm::kNone) {
    launch_gemm_in_place(site, blas, shape, buffers);
  } else if (problem.N > 0) {
    visit_device_type(problem.dtype, [&](auto type) {
      GemmGather<decltype(type)>(site, blas, shape, buffers).run();
    });
  }
}

}  // namespace convx
