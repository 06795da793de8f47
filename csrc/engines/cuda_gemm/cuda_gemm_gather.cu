// Forward and input gradient: target rows = packed filters times column matrix.
#include "engines/cuda_gemm/blas_scope.h"
#include "engines/cuda_gemm/cuda_gemm_passes.h"
#include "engines/cuda_gemm/gemm_steps.cuh"
#include "engines/cuda_staging.h"

namespace convx {
namespace {

// Chunks of a pointwise problem whose results get their bias while they are still in L2.
constexpr int64_t kBiasChunkBytes = int64_t{24} << 20;

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
    if (uses_source_in_place(problem_)) return run_pointwise();
    if (uses_pixels_in_place(problem_)) return run_pixels();
    for (size_t row = 0; row < shape_.rows.size(); ++row) {
      for (size_t column = 0; column < shape_.columns.size(); ++column) run_phases(row, column);
    }
  }

 private:
  void pack_filters(const GatherAxis& row, const GatherAxis& column, void* packed) {
    const FilterParams params = make_filter_params(problem_, view_, row, column);
    const int64_t elements =
        problem_.groups * view_.target_channels * view_.source_channels * row.taps * column.taps;
    launch_kernel<pack_filters_kernel<T>>(
        site_, count_loop_blocks(elements, kMoveThreads), kMoveThreads, 0, params,
        static_cast<const T*>(buffers_.w), static_cast<T*>(packed), elements);
  }

  void run_phases(size_t row_phase, size_t column_phase) {
    const GatherAxis& row = shape_.rows[row_phase].axis;
    const StoredRows& stored = shape_.rows[row_phase].stored;
    const GatherAxis& column = shape_.columns[column_phase];
    const GemmExtents extents = make_extents(problem_, view_, row, column);
    const GemmChunk chunk = find_gemm_chunk(shape_, problem_, extents, row_phase, column_phase);
    const GemmWorkspace workspace(problem_, chunk, buffers_.workspace);
    const bool empty = row.taps == 0 || column.taps == 0;
    if (!empty) pack_filters(row, column, workspace.resident);
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
  // cuBLAS sees every matrix transposed, so columns are the left operand there.
  void multiply(const StoredRows& stored, const GatherAxis& row, const GatherAxis& column,
                const LatticePiece& piece, const GemmWorkspace& workspace, const MoveParams& move,
                bool in_place) {
    const int64_t row_elements = view_.source_channels * column.taps * piece.pitch();
    const int64_t reduction = row.taps * view_.source_channels * column.taps;
    const GemmOperand columns{workspace.columns, false, piece.pitch(),
                              stored.count(piece.rows) * row_elements,
                              stored.per_output * row_elements};
    const GemmOperand filters{workspace.resident, false, reduction,
                              view_.target_channels * reduction, 0};
    BatchedGemm gemm{};
    gemm.k = reduction;
    gemm.groups = problem_.groups;
    gemm.rows = piece.rows;
    const Strides& strides = view_.target_strides;
    if (in_place && !is_row_in_place(strides, column.target_step, column.count)) {
      // Channels_last: result[pixel][filter], that is the transposed product.
      gemm.m = view_.target_channels;
      gemm.n = piece.pixels();
      gemm.left = filters;
      gemm.right = columns;
      gemm.left.transposed = gemm.right.transposed = true;
      gemm.pitch = column.target_step * strides.w;
    } else {
      gemm.m = piece.pixels();
      gemm.n = view_.target_channels;
      gemm.left = columns;
      gemm.right = filters;
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

  // x (or y) is the column matrix: an image is one output row of H * W pixels.
  void run_pointwise() {
    const GatherAxis& row = shape_.rows[0].axis;
    const StoredRows& stored = shape_.rows[0].stored;
    const GatherAxis& column = shape_.columns[0];
    pack_filters(row, column, buffers_.workspace);
    const Strides& from = view_.source_strides;
    const Strides& to = view_.target_strides;
    const int64_t pixels = problem_.H * problem_.W;
    const int64_t image_bytes =
        problem_.groups * view_.target_channels * pixels * static_cast<int64_t>(sizeof(T));
    const int64_t images =
        bias_ == nullptr ? problem_.N : std::max<int64_t>(kBiasChunkBytes / image_bytes, 1);
    LatticePiece piece{0, 0, 0, 0, problem_.H, 0, problem_.W};
    for (; piece.image < problem_.N; piece.image += images) {
      piece.images = std::min(images, problem_.N - piece.image);
      BatchedGemm gemm{};
      gemm.m = pixels;
      gemm.n = view_.target_channels;
      gemm.k = view_.source_channels;
      gemm.left = {static_cast<const T*>(source_) + piece.image * from.n, false, from.c,
                   view_.source_channels * from.c, from.n};
      gemm.right = {buffers_.workspace, false, gemm.k, gemm.n * gemm.k, 0};
      gemm.result = static_cast<T*>(target_) + piece.image * to.n;
      gemm.pitch = to.c;
      gemm.group_stride = view_.target_channels * to.c;
      gemm.row_stride = to.n;
      gemm.groups = problem_.groups;
      gemm.rows = piece.images;
      blas_.multiply(gemm);
      MoveParams move = make_move_params(problem_, view_, stored, row, column, piece, target_);
      move.bias = bias_;
      add_bias(move);
    }
  }

  // The same where pixels have their channels side by side: all images at once, or as many pixels
  // as stay in L2 until they have their bias.
  void run_pixels() {
    BatchedGemm gemm{};
    gemm.m = view_.target_channels;
    gemm.k = view_.source_channels;
    const Strides& w = problem_.w_strides;
    const bool packed =
        problem_.pass == Pass::kForward && w.n == gemm.k && (w.c == 1 || gemm.k == 1);
    if (!packed) pack_filters(shape_.rows[0].axis, shape_.columns[0], buffers_.workspace);
    gemm.left = {packed ? buffers_.w : buffers_.workspace, true, gemm.k, gemm.m * gemm.k, 0};
    gemm.pitch = view_.target_strides.w;
    gemm.group_stride = gemm.m;
    gemm.groups = problem_.groups;
    gemm.rows = 1;
    const int64_t pixels = problem_.N * problem_.H * problem_.W;
    const int64_t pixel_bytes = problem_.groups * gemm.m * static_cast<int64_t>(sizeof(T));
    // Of few results more stay than launching once more would be worth.
    const bool whole = bias_ == nullptr || pixels * pixel_bytes <= 2 * kBiasChunkBytes;
    const int64_t most = whole ? pixels : std::max<int64_t>(kBiasChunkBytes / pixel_bytes, 1);
    for (int64_t pixel = 0; pixel < pixels; pixel += most) {
      gemm.n = std::min(most, pixels - pixel);
      gemm.right = {static_cast<const T*>(source_) + pixel * view_.source_strides.w, false,
                    view_.source_strides.w, gemm.k, 0};
      gemm.result = static_cast<T*>(target_) + pixel * gemm.pitch;
      blas_.multiply(gemm);
      if (bias_ != nullptr) add_pixel_bias(static_cast<T*>(gemm.result), gemm.n, gemm.pitch);
    }
  }

  void add_pixel_bias(T* results, int64_t pixels, int64_t pitch) {
    constexpr int kUnit = 16 / sizeof(T);
    const int64_t channels = problem_.groups * view_.target_channels;
    const auto launch = [&]<int kValues>() {
      const int64_t units = pixels * channels / kValues;
      launch_kernel<add_pixel_bias_kernel<T, kValues>>(
          site_, count_loop_blocks(units, kMoveThreads), kMoveThreads, 0, results,
          static_cast<const T*>(bias_), units, pitch, FastDivmod(channels / kValues));
    };
    const bool wide = channels % kUnit == 0 && pitch % kUnit == 0 &&
                      is_aligned(results, problem_.dtype, kUnit) &&
                      is_aligned(bias_, problem_.dtype, kUnit);
    if (wide) {
      launch.template operator()<kUnit>();
    } else {
      launch.template operator()<1>();
    }
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
