// Forward pass and input gradient of 1x1 layers whose tensors are used as matrices
// (gemm_in_place.h).
#include "engines/cuda/gemm/blas_scope.h"
#include "engines/cuda/gemm/gemm_passes.h"
#include "engines/cuda/gemm/gemm_steps.cuh"

namespace convx {
namespace {

template <typename T>
class GemmInPlace {
 public:
  GemmInPlace(const LaunchSite& site, void* blas, const GemmShape& shape, const Buffers& buffers)
      : site_(site),
        problem_(*site.problem),
        blas_(site, blas),
        phases_(shape),
        view_(shape.view),
        shape_(shape.in_place) {
    const bool forward = problem_.pass == Pass::kForward;
    source_ = static_cast<const T*>(forward ? buffers.x : buffers.y);
    target_ = static_cast<T*>(forward ? buffers.y : buffers.x);
    bias_ = static_cast<const T*>(forward && problem_.has_bias ? buffers.bias : nullptr);
    char* workspace = static_cast<char*>(buffers.workspace);
    bias_values_ = reinterpret_cast<T*>(workspace + shape_.filter_bytes);
    copied_ = reinterpret_cast<T*>(workspace + shape_.filter_bytes + shape_.bias_bytes);
    results_ = reinterpret_cast<char*>(copied_) + shape_.chunk_bytes;
    blas_workspace_ = results_ + shape_.result_bytes;
    packed_ = workspace;
    w_ = buffers.w;
  }

  void run() {
    if (shape_.filters.packed) {
      pack_filters<T>(site_, view_, phases_.rows[0].axis, phases_.columns[0], w_, packed_);
    }
    if (shape_.form == InPlaceForm::kPlanes) return run_planes();
    if (shape_.form == InPlaceForm::kSideBySide) return run_side_by_side();
    const int64_t pixels = problem_.N * (problem_.pass == Pass::kForward ? problem_.P * problem_.Q
                                                                         : problem_.H * problem_.W);
    if (shape_.form == InPlaceForm::kPixels) return multiply_pixels(source_, target_, pixels);
    for (int64_t pixel = 0; pixel < pixels; pixel += shape_.chunk_pixels) {
      const int64_t count = std::min(shape_.chunk_pixels, pixels - pixel);
      copy_source_pixels(site_, shape_, source_, copied_, pixel, count);
      multiply_pixels(copied_, target_ + pixel * shape_.target_pitch, count);
    }
  }

 private:
  // Column-major, as cuBLAS sees it: [source channel][target channel], or its transpose.
  GemmOperand filters(bool transposed) const {
    return {shape_.filters.packed ? packed_ : w_, transposed != shape_.filters.transposed,
            shape_.filters.pitch, shape_.filters.group_stride, 0};
  }

  LtExtras memory() const { return {{}, {}, blas_workspace_, shape_.blas_bytes, shape_.lt_rank}; }

  // Multiplies without a bias, by cuBLASLt where it chooses a better algorithm than cuBLAS.
  void multiply(const BatchedGemm& gemm) const {
    if (shape_.asks_lt && blas_.multiply_lt(gemm, memory())) return;
    blas_.multiply(gemm);
  }

  void run_planes() {
    const int64_t pixels = problem_.H * problem_.W;
    const int64_t source_step = view_.source_strides.n, target_step = view_.target_strides.n;
    if (bias_ != nullptr) {
      fill_bias(bias_values_, problem_.K, shape_.bias_pixels, shape_.bias_pixels, true);
    }
    if (bias_ == nullptr || shape_.bias_pixels == pixels) {
      return multiply_planes(source_, target_, pixels, problem_.N, source_step, target_step);
    }
    // A large image is cut into pieces that share the bias matrix; the rest of each image follows.
    const int64_t piece = shape_.bias_pixels, pieces = pixels / piece;
    for (int64_t image = 0; image < problem_.N; ++image) {
      multiply_planes(source_ + image * source_step, target_ + image * target_step, piece, pieces,
                      piece, piece);
    }
    const int64_t done = pieces * piece;
    if (done == pixels) return;
    multiply_planes(source_ + done, target_ + done, pixels - done, problem_.N, source_step,
                    target_step);
  }

  // Multiplies `count` blocks of `pixels` pixels of all planes.
  void multiply_planes(const T* source, T* target, int64_t pixels, int64_t count,
                       int64_t source_step, int64_t target_step) {
    BatchedGemm gemm{};
    gemm.m = pixels;
    gemm.n = view_.target_channels;
    gemm.k = view_.source_channels;
    gemm.left = {source, false, shape_.source_pitch, gemm.k * shape_.source_pitch, source_step};
    gemm.right = filters(false);
    gemm.result = target;
    gemm.pitch = shape_.target_pitch;
    gemm.group_stride = gemm.n * gemm.pitch;
    gemm.row_stride = target_step;
    gemm.groups = problem_.groups;
    gemm.rows = count;
    if (bias_ == nullptr) return multiply(gemm);
    LtExtras added = memory();
    added.matrix = {bias_values_, false, shape_.bias_pixels, gemm.n * shape_.bias_pixels, 0};
    if (!blas_.multiply_lt(gemm, added)) {
      throw_launch_error(site_, "cublasLtMatmulAlgoGetHeuristic", "no algorithm");
    }
  }

  void run_side_by_side() {
    const int64_t plane = problem_.H * problem_.W;
    const int64_t most = shape_.chunk_pixels / plane;
    for (int64_t image = 0; image < problem_.N; image += most) {
      const int64_t images = std::min(most, problem_.N - image);
      PlaneParams p{};
      p.pixels = static_cast<int>(images * plane);
      p.pitch = static_cast<int>(shape_.source_pitch);
      p.by_plane = FastDivmod(plane);
      const auto lay_out = [&](const Strides& strides, const T* tensor, int64_t channels,
                               void* lines) {
        p.planes = const_cast<T*>(tensor) + image * strides.n;
        p.n = strides.n;
        p.c = strides.c;
        p.channels = static_cast<int>(problem_.groups * channels);
        p.lines = lines;
        constexpr int kBlockPixels = kPlanePixels * kMoveThreads;
        return dim3(static_cast<unsigned>((p.pitch + kBlockPixels - 1) / kBlockPixels),
                    static_cast<unsigned>(std::min(p.channels, 65535)));
      };
      dim3 grid = lay_out(view_.source_strides, source_, view_.source_channels, copied_);
      launch_kernel<gather_planes_kernel<T>>(site_, grid, kMoveThreads, 0, p);
      BatchedGemm gemm{};
      gemm.m = p.pitch;  // includes the padding: cuBLAS is slow with other numbers of pixels
      gemm.n = view_.target_channels;
      gemm.k = view_.source_channels;
      gemm.left = {copied_, false, p.pitch, gemm.k * p.pitch, 0};
      gemm.right = filters(false);
      gemm.result = results_;
      gemm.pitch = p.pitch;
      gemm.group_stride = gemm.n * p.pitch;
      gemm.groups = problem_.groups;
      gemm.rows = 1;
      gemm.wide_result = shape_.wide_results;
      multiply(gemm);
      grid = lay_out(view_.target_strides, target_, view_.target_channels, results_);
      p.bias = bias_;
      if (shape_.wide_results) {
        launch_kernel<scatter_planes_kernel<T, accumulate_t<T>>>(site_, grid, kMoveThreads, 0, p);
      } else {
        launch_kernel<scatter_planes_kernel<T, T>>(site_, grid, kMoveThreads, 0, p);
      }
    }
  }

  void multiply_pixels(const T* source, T* target, int64_t pixels) {
    BatchedGemm gemm{};
    gemm.m = view_.target_channels;
    gemm.n = pixels;
    gemm.k = view_.source_channels;
    gemm.left = filters(true);
    gemm.right = {source, false, shape_.source_pitch, gemm.k, 0};
    gemm.result = target;
    gemm.pitch = shape_.target_pitch;
    gemm.group_stride = gemm.m;
    gemm.groups = problem_.groups;
    gemm.rows = 1;
    if (bias_ == nullptr) return multiply(gemm);
    LtExtras added = memory();
    added.rows = {bias_, false, 0, gemm.m, 0};
    if (blas_.multiply_lt(gemm, added)) return;
    fill_bias(target, pixels, problem_.K, gemm.pitch, false);
    gemm.accumulate = true;
    blas_.multiply(gemm);
  }

  void fill_bias(T* to, int64_t lines, int64_t columns, int64_t pitch, bool line_is_channel) {
    constexpr int64_t kMostValues = int64_t{1} << 30;  // per launch
    const int64_t most = std::max<int64_t>(kMostValues / columns, 1);
    for (int64_t line = 0; line < lines; line += most) {
      const auto values = static_cast<int>(std::min(most, lines - line) * columns);
      launch_kernel<fill_bias_kernel<T>>(site_, count_loop_blocks(values, kMoveThreads),
                                         kMoveThreads, 0, to + line * pitch,
                                         bias_ + (line_is_channel ? line : 0), values,
                                         FastDivmod(columns), pitch, line_is_channel);
    }
  }

  const LaunchSite& site_;
  const ConvProblem& problem_;
  BlasScope blas_;
  const GemmShape& phases_;
  const GatherView& view_;
  const InPlaceShape& shape_;
  const T* source_;
  T* target_;
  const T* bias_;
  const void* w_;
  // Pieces of the workspace:
  void* packed_;
  T *bias_values_, *copied_;
  char *results_, *blas_workspace_;
};

}  // namespace

void launch_gemm_in_place(const LaunchSite& site, void* blas, const GemmShape& shape,
                          const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&](auto type) {
    GemmInPlace<decltype(type)>(site, blas, shape, buffers).run();
  });
}

}  // namespace convx
