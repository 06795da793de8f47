// Weight gradient: for every output row, y's row times the transposed column matrix.
//
// There is one product per output row, and products are summed in a fixed order. Short reductions
// inside cuBLAS keep float32 accurate, and many small products fill the device where one large
// product would not.
#include "engines/cuda/gemm/gemm_shape.h"
#include "engines/cuda/gemm/gemm_steps.cuh"

namespace convx {
namespace {

template <typename T>
class GemmWeightGrad : GemmPass {
  using Acc = accumulate_t<T>;

 public:
  GemmWeightGrad(const LaunchSite& site, void* blas, const GemmShape& shape, const Buffers& buffers)
      : GemmPass(site, blas, shape, buffers),
        elements_(problem_.K * problem_.channels_per_group() * problem_.taps()),
        sum_(static_cast<Acc*>(buffers.workspace)) {}

  void run() {
    if (shape_.in_place.is_whole) return run_whole();
    if (shape_.in_place.form == InPlaceForm::kPlanes) {
      run_pointwise();
    } else if (shape_.in_place.form == InPlaceForm::kPixels) {
      run_pixels();
    } else {
      run_rows();
    }
    const FilterParams params =
        make_filter_params(problem_, view_, shape_.rows[0].axis, shape_.columns[0]);
    launch_kernel<write_gradient_kernel<Acc>>(
        site_, count_loop_blocks(elements_, kMoveThreads), kMoveThreads, 0, params,
        static_cast<const Acc*>(first_ ? nullptr : sum_), waiting_, waiting_count_, problem_.dtype,
        buffers_.w, elements_);
  }

 private:
  void run_rows() {
    const GemmPhase phase(problem_, shape_, 0, 0, buffers_.workspace);
    visit_chunks(problem_, phase, [&](const LatticePiece& piece) {
      MoveParams move = make_move_params(problem_, view_, phase, piece, buffers_.y);
      const GemmOperand columns = fill_columns<T>(site_, view_, phase, piece, buffers_.x, true);
      const Strides& strides = view_.target_strides;
      GemmOperand gradient{};
      if (!phase.is_in_place()) {
        move.staged = phase.workspace.staging;
        launch_kernel<gather_gradient_kernel<MovedAs<T>>>(site_, move_grid(move), kMoveThreads, 0,
                                                          move);
        const int64_t row_elements = view_.target_channels * piece.pitch();
        gradient = {phase.workspace.staging, false, piece.pitch(), piece.rows * row_elements,
                    row_elements};
      } else {
        const T* first = static_cast<const T*>(move.tensor) + move.row_origin * strides.h +
                         move.column_origin * strides.w;
        const bool rows = is_row_in_place(strides, 1, phase.column.count);
        gradient = {first, !rows, rows ? strides.c : strides.w, view_.target_channels * strides.c,
                    move.row_step * strides.h};
      }
      multiply(columns, gradient, piece.pixels(), piece.rows,
               reinterpret_cast<Acc*>(phase.workspace.partial));
    });
  }

  // Row-major: product[filter][reduction index] = gradient[filter][pixel] * columns^T. cuBLAS sees
  // the transposed product, with columns on the left.
  void multiply(const GemmOperand& columns, const GemmOperand& gradient, int64_t pixels,
                int64_t rows, Acc* partial) {
    add_waiting();
    BatchedGemm gemm{};
    gemm.m = view_.source_channels * problem_.taps();
    gemm.n = view_.target_channels;
    gemm.k = pixels;
    gemm.left = columns;
    gemm.right = gradient;
    gemm.pitch = gemm.m;
    gemm.groups = problem_.groups;
    gemm.rows = rows;
    gemm.group_stride = gemm.m * gemm.n;
    gemm.row_stride = elements_;
    gemm.wide_result = true;
    if (rows == 1) {
      gemm.result = sum_;
      gemm.accumulate = !first_;
      blas_.multiply(gemm);
      first_ = false;
    } else {
      gemm.result = partial;
      blas_.multiply(gemm);
      waiting_ = partial;
      waiting_count_ = static_cast<int>(rows);
    }
  }

  // Adds products to the sum, before others take their place. The last ones are added by the kernel
  // that writes the result.
  void add_waiting() {
    if (waiting_count_ == 0) return;
    launch_kernel<add_products_kernel<Acc>>(site_, count_loop_blocks(elements_, kMoveThreads),
                                            kMoveThreads, 0, waiting_, waiting_count_, sum_,
                                            elements_, first_);
    waiting_count_ = 0;
    first_ = false;
  }

  // 1x1 layers whose pixels are one matrix, or are copied to one: a single product writes the
  // result.
  void run_whole() {
    const InPlaceShape& in_place = shape_.in_place;
    const bool planes = in_place.form == InPlaceForm::kPlanes;
    const int64_t x_pitch = in_place.source_pitch, y_pitch = in_place.target_pitch;
    BatchedGemm gemm{};
    gemm.m = view_.source_channels;
    gemm.n = view_.target_channels;
    gemm.k = shape_.segment;
    const void* x = buffers_.x;
    if (in_place.form == InPlaceForm::kStridedPixels) {
      x = buffers_.workspace;
      copy_source_pixels(site_, in_place, buffers_.x, buffers_.workspace, 0, gemm.k);
    }
    gemm.left = {x, planes, x_pitch, gemm.m * (planes ? x_pitch : 1), 0};
    gemm.right = {buffers_.y, !planes, y_pitch, gemm.n * (planes ? y_pitch : 1), 0};
    gemm.result = buffers_.w;
    gemm.pitch = in_place.filters.pitch;
    gemm.group_stride = in_place.filters.group_stride;
    gemm.groups = problem_.groups;
    gemm.rows = 1;
    void* const blas_memory = static_cast<char*>(buffers_.workspace) + in_place.chunk_bytes;
    multiply_in_place(gemm, blas_memory);
  }

  // 1x1 layers in NCHW: x is the column matrix. An image is cut into segments of pixels, unless it
  // is small.
  void run_pointwise() {
    const int64_t pixels = problem_.H * problem_.W;
    const int64_t room = count_partials();
    const int64_t segment = shape_.segment;
    const int64_t segments = pixels / segment;
    const Strides& xs = problem_.x_strides;
    const Strides& ys = problem_.y_strides;
    auto run_batch = [&](int64_t image, int64_t pixel, int64_t length, int64_t count,
                         int64_t x_step, int64_t y_step) {
      for (int64_t done = 0; done < count; done += room) {
        const T* x = static_cast<const T*>(buffers_.x) + image * xs.n + pixel + done * x_step;
        const T* y = static_cast<const T*>(buffers_.y) + image * ys.n + pixel + done * y_step;
        multiply({x, true, xs.c, view_.source_channels * xs.c, x_step},
                 {y, false, ys.c, view_.target_channels * ys.c, y_step}, length,
                 std::min(room, count - done), partials());
      }
    };
    if (segments == 1) {
      run_batch(0, 0, segment, problem_.N, xs.n, ys.n);
    } else {
      for (int64_t image = 0; image < problem_.N; ++image) {
        run_batch(image, 0, segment, segments, segment, segment);
      }
    }
    const int64_t rest = pixels - segments * segment;
    if (rest > 0) run_batch(0, segments * segment, rest, problem_.N, xs.n, ys.n);
  }

  // 1x1 layers in channels_last: x is [pixel][channel], with the pixels of all images.
  void run_pixels() {
    const int64_t x_pitch = shape_.in_place.source_pitch, y_pitch = shape_.in_place.target_pitch;
    const auto multiply_some = [&](int64_t pixel, int64_t length, int64_t count) {
      const T* x = static_cast<const T*>(buffers_.x) + pixel * x_pitch;
      const T* y = static_cast<const T*>(buffers_.y) + pixel * y_pitch;
      multiply({x, false, x_pitch, view_.source_channels, length * x_pitch},
               {y, true, y_pitch, view_.target_channels, length * y_pitch}, length, count,
               partials());
    };
    const int64_t pixels = problem_.N * problem_.H * problem_.W;
    const int64_t segment = shape_.segment, segments = pixels / segment, room = count_partials();
    for (int64_t done = 0; done < segments; done += room) {
      multiply_some(done * segment, segment, std::min(room, segments - done));
    }
    const int64_t rest = pixels - segments * segment;
    if (rest > 0) multiply_some(pixels - rest, rest, 1);
  }

  // 1x1 layers: partial products that are still to be summed, and how many of them fit.
  Acc* partials() const {
    return reinterpret_cast<Acc*>(static_cast<char*>(buffers_.workspace) +
                                  resident_bytes(problem_));
  }
  int64_t count_partials() const {
    return std::max<int64_t>(shape_.budget / (elements_ * static_cast<int64_t>(sizeof(Acc))), 1);
  }

  int64_t elements_;
  Acc* sum_;
  bool first_ = true;             // true: the sum is still empty
  const Acc* waiting_ = nullptr;  // products that are still to be added, and how many they are
  int waiting_count_ = 0;
};

}  // namespace

void launch_gemm_weight_grad(const LaunchSite& site, void* blas, const GemmShape& shape,
                             const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&](auto type) {
    GemmWeightGrad<decltype(type)>(site, blas, shape, buffers).run();
  });
}

}  // namespace convx
