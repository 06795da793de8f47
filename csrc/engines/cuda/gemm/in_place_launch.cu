// Forward pass and input gradient of 1x1 layers whose tensors are used as matrices
// (gemm_in_place.h).
#include "engines/cuda/gemm/gemm_shape.h"
#include "engines/cuda/gemm/gemm_steps.cuh"

namespace convx {
namespace {

template <typename T>
class GemmInPlace : GemmPass {
 public:
  GemmInPlace(const LaunchSite& site, void* blas, const GemmShape& shape, const Buffers& buffers)
      : GemmPass(site, blas, shape, buffers),
        in_place_(shape.in_place),
        source_(static_cast<const T*>(source())),
        target_(static_cast<T*>(target())),
        bias_(static_cast<const T*>(bias())) {
    char* workspace = static_cast<char*>(buffers.workspace);
    bias_values_ = reinterpret_cast<T*>(workspace + in_place_.filter_bytes);
    copied_ = reinterpret_cast<T*>(workspace + in_place_.filter_bytes + in_place_.bias_bytes);
    results_ = reinterpret_cast<char*>(copied_) + in_place_.chunk_bytes;
    blas_workspace_ = results_ + in_place_.result_bytes;
    packed_ = workspace;
  }

  void run() {
    if (in_place_.filters.packed) {
      pack_filters<T>(site_, view_, shape_.rows[0].axis, shape_.columns[0], buffers_.w, packed_);
    }
    if (in_place_.form == InPlaceForm::kPlanes) return run_planes();
    if (in_place_.form == InPlaceForm::kSideBySide) {
      if constexpr (sizeof(T) <= 4) return run_side_by_side();
      throw_launch_error(site_, "choosing a kernel", "float64 planes do not lie side by side");
    }
    const int64_t pixels = target_pixels(problem_);
    if (in_place_.form == InPlaceForm::kPixels) return multiply_pixels(source_, target_, pixels);
    for (int64_t pixel = 0; pixel < pixels; pixel += in_place_.chunk_pixels) {
      const int64_t count = std::min(in_place_.chunk_pixels, pixels - pixel);
      copy_source_pixels(site_, in_place_, source_, copied_, pixel, count);
      multiply_pixels(copied_, target_ + pixel * in_place_.target_pitch, count);
    }
  }

 private:
  // Column-major, as cuBLAS sees it: [source channel][target channel], or its transpose.
  GemmOperand filters(bool transposed) const {
    return {in_place_.filters.packed ? packed_ : buffers_.w,
            transposed != in_place_.filters.transposed, in_place_.filters.pitch,
            in_place_.filters.group_stride, 0};
  }

  LtExtras memory() const {
    return {{}, {}, blas_workspace_, in_place_.blas_bytes, in_place_.lt_rank};
  }

  // Multiplies without a bias.
  void multiply(const BatchedGemm& gemm) const { multiply_in_place(gemm, blas_workspace_); }

  void run_planes() {
    const int64_t pixels = problem_.H * problem_.W;
    const int64_t source_step = view_.source_strides.n, target_step = view_.target_strides.n;
    if (bias_ != nullptr) {
      fill_bias(bias_values_, problem_.K, in_place_.bias_pixels, in_place_.bias_pixels, true);
    }
    if (bias_ == nullptr || in_place_.bias_pixels == pixels) {
      return multiply_planes(source_, target_, pixels, problem_.N, source_step, target_step);
    }
    // A large image is cut into pieces that share the bias matrix; the rest of each image follows.
    const int64_t piece = in_place_.bias_pixels, pieces = pixels / piece;
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
    gemm.left = {source, false, in_place_.source_pitch, gemm.k * in_place_.source_pitch,
                 source_step};
    gemm.right = filters(false);
    gemm.result = target;
    gemm.pitch = in_place_.target_pitch;
    gemm.group_stride = gemm.n * gemm.pitch;
    gemm.row_stride = target_step;
    gemm.groups = problem_.groups;
    gemm.rows = count;
    if (bias_ == nullptr) return multiply(gemm);
    LtExtras added = memory();
    added.matrix = {bias_values_, false, in_place_.bias_pixels, gemm.n * in_place_.bias_pixels, 0};
    if (!blas_.multiply_lt(gemm, added)) {
      throw_launch_error(site_, "cublasLtMatmulAlgoGetHeuristic", "no algorithm");
    }
  }

  void run_side_by_side() {
    const int64_t plane = problem_.H * problem_.W;
    const int64_t most = in_place_.chunk_pixels / plane;
    for (int64_t image = 0; image < problem_.N; image += most) {
      const int64_t images = std::min(most, problem_.N - image);
      PlaneParams p{};
      p.pixels = static_cast<int>(images * plane);
      p.pitch = static_cast<int>(in_place_.source_pitch);
      p.by_plane = FastDivmod(plane);
      const auto lay_out = [&](const Strides& strides, const T* tensor, int64_t channels,
                               void* lines) {
        p.planes = const_cast<T*>(tensor) + image * strides.n;
        p.n = strides.n;
        p.c = strides.c;
        p.channels = static_cast<int>(problem_.groups * channels);
        p.lines = lines;
        constexpr int kBlockPixels = kPlanePixels * kMoveThreads;
        return Grid((p.pitch + kBlockPixels - 1) / kBlockPixels, std::min(p.channels, 65535));
      };
      Grid grid = lay_out(view_.source_strides, source_, view_.source_channels, copied_);
      launch_kernel<gather_planes_kernel<MovedAs<T>>>(site_, grid, kMoveThreads, 0, p);
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
      gemm.wide_result = in_place_.wide_results;
      multiply(gemm);
      grid = lay_out(view_.target_strides, target_, view_.target_channels, results_);
      p.bias = bias_;
      if (in_place_.wide_results) {
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
    gemm.right = {source, false, in_place_.source_pitch, gemm.k, 0};
    gemm.result = target;
    gemm.pitch = in_place_.target_pitch;
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
    using Moved = MovedAs<T>;
    constexpr int64_t kMostValues = int64_t{1} << 30;  // per launch
    const int64_t most = std::max<int64_t>(kMostValues / columns, 1);
    for (int64_t line = 0; line < lines; line += most) {
      const auto values = static_cast<int>(std::min(most, lines - line) * columns);
      const T* const first = bias_ + (line_is_channel ? line : 0);
      launch_kernel<fill_bias_kernel<Moved>>(
          site_, count_loop_blocks(values, kMoveThreads), kMoveThreads, 0,
          reinterpret_cast<Moved*>(to + line * pitch), reinterpret_cast<const Moved*>(first),
          values, FastDivmod(columns), pitch, line_is_channel);
    }
  }

  const InPlaceShape& in_place_;
  const T* source_;
  T* target_;
  const T* bias_;
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
