#include <algorithm>

#include "cuda/launch.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/phases_kernels.cuh"
#include "engines/cuda/input_grad/phases_shape.h"
#include "engines/cuda/input_grad/phases_transpose.cuh"
#include "engines/engines.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Calls visit<unit>() for a unit of so many elements, a power of two of up to 16 bytes.
template <typename T, typename Visit, int kUnit = 16 / sizeof(T)>
void visit_unit(int unit, const Visit& visit) {
  if (unit == kUnit) {
    visit.template operator()<kUnit>();
  } else if constexpr (kUnit > 1) {
    visit_unit<T, Visit, kUnit / 2>(unit, visit);
  }
}

// Calls visit with a value of so many bytes, which are loaded at once.
template <typename Visit>
void visit_piece(int bytes, const Visit& visit) {
  if (bytes == 16) return visit(uint4{});
  if (bytes == 8) return visit(uint2{});
  if (bytes == 4) return visit(uint32_t{});
  visit(uint16_t{});
}

class PhasesLaunch {
 public:
  PhasesLaunch(const LaunchSite& site, const PhasesShape& shape, const Buffers& buffers)
      : site_(site),
        problem_(*site.problem),
        shape_(shape),
        buffers_(buffers),
        context_{site.stream, site.get_blas} {}

  void run_views() const {
    for (const ViewedPhase& view : shape_.views) {
      Buffers own = buffers_;
      own.x = advance(buffers_.x, view.x_offset);
      own.w = advance(buffers_.w, view.w_offset);
      launch_cuda(view.problem, view.plan, own, context_);
    }
  }

  // kChannels and kTransposed.
  void run_chunks() const {
    const bool transposes = shape_.form == PhasesForm::kTransposed;
    const auto workspace = static_cast<char*>(buffers_.workspace);
    void* const filters =
        shape_.filters_in_place ? buffers_.w : pack(shape_.pack, workspace, nullptr);
    void* const pixels = workspace + shape_.filter_bytes;
    void* const results = workspace + shape_.filter_bytes + shape_.source_bytes;
    for (int64_t image = 0; image < problem_.N; image += shape_.chunk_images) {
      const int64_t images = std::min(shape_.chunk_images, problem_.N - image);
      const InnerProblem& chunk = images == shape_.chunk_images ? shape_.whole : shape_.rest;
      void* const own = advance(buffers_.y, image * problem_.y_strides.n);
      void* const target = advance(buffers_.x, image * problem_.x_strides.n);
      void* const source = transposes ? pixels : own;
      Buffers inner;
      inner.x = source;
      inner.w = filters;
      inner.y = results;
      inner.workspace = workspace + shape_.filter_bytes + shape_.source_bytes + shape_.result_bytes;
      if (transposes) {
        PlaneCopy copy = shape_.to_pixels;
        copy.planes = own, copy.pixels = pixels, copy.images = images;
        gather_pixels(site_, copy);
      }
      launch_cuda(chunk.problem, chunk.plan, inner, context_);
      if (transposes) {
        transpose(results, target, images);
      } else {
        interleave(images, source, results, target);
      }
    }
  }

  void run_rows() const {
    const auto workspace = static_cast<char*>(buffers_.workspace);
    const auto flag = static_cast<int*>(buffers_.workspace);
    for (const RowPhase& row : shape_.rows) {
      pack(row.pack, workspace + row.filter_offset, flag);
    }
    if (shape_.interleave.recomputes) scan_source(flag);
    for (const RowPhase& row : shape_.rows) {
      Buffers inner;
      inner.x = buffers_.y;
      inner.w = workspace + row.filter_offset;
      inner.y = advance(buffers_.x, row.x_offset);
      inner.workspace = workspace + shape_.filter_bytes;
      launch_cuda(row.problem, row.plan, inner, context_);
    }
    if (shape_.interleave.recomputes) recompute(flag);
  }

 private:
  // Calls visit with ranges of images that have fewer than 2^30 units together.
  template <typename Visit>
  void visit_images(int64_t image_units, const Visit& visit) const {
    const int64_t most = std::max<int64_t>(kMostPhaseElements / image_units, 1);
    for (int64_t image = 0; image < problem_.N; image += most) {
      visit(image, std::min(most, problem_.N - image));
    }
  }

  void scan_source(int* flag) const {
    ScanParams params = shape_.scan;
    params.flag = flag;
    const int unit = fit_unit_to_address(buffers_.y, size_of(problem_.dtype), params.unit);
    if (unit < params.unit) set_scan_unit(params, problem_, unit);
    visit_images(params.image_units, [&](int64_t image, int64_t images) {
      params.source = advance(buffers_.y, image * problem_.y_strides.n);
      params.units = static_cast<int>(images * params.image_units);
      const Grid grid(count_loop_blocks(params.units, 4 * kPhasesThreads));
      visit_piece(params.unit * params.element_bytes, [&]<typename Piece>(Piece) {
        launch_early<scan_source_kernel<Piece>>(site_, grid, kPhasesThreads, 0, params);
      });
    });
  }

  void recompute(const int* flag) const {
    InterleaveParams params = shape_.interleave;
    params.flag = flag;
    params.filters = buffers_.w;
    visit_images(params.image_units, [&](int64_t image, int64_t images) {
      params.source = advance(buffers_.y, image * problem_.y_strides.n);
      params.target = advance(buffers_.x, image * problem_.x_strides.n);
      params.units = static_cast<int>(images * params.image_units);
      const Grid grid(count_loop_blocks(params.units, 16 * kPhasesThreads));
      visit_device_type(problem_.dtype, [&](auto type) {
        launch_early<recompute_phases_kernel<decltype(type)>>(site_, grid, kPhasesThreads, 0,
                                                              params);
      });
    });
  }

  void* advance(void* tensor, int64_t elements) const {
    return static_cast<char*>(tensor) + elements * size_of(problem_.dtype);
  }

  void* pack(FilterPack params, void* packed, int* cleared) const {
    params.filters = buffers_.w;
    params.packed = packed;
    params.cleared = cleared;
    pack_filters(site_, params, size_of(problem_.dtype));
    return packed;
  }

  // source: the images of y that the results belong to.
  void interleave(int64_t images, const void* source, const void* results, void* target) const {
    InterleaveParams params = shape_.interleave;
    params.results = results;
    params.source = source;
    params.filters = buffers_.w;
    params.target = target;
    const int unit = fit_unit_to_address(params.target, size_of(problem_.dtype), params.unit);
    if (unit < params.unit) set_interleave_unit(params, problem_, unit);
    params.units = static_cast<int>(images * params.image_units);
    const int thread_units = params.has_pixels ? 4 : 1;
    const Grid grid(count_loop_blocks(params.units, thread_units * kPhasesThreads));
    visit_device_type(problem_.dtype, [&]<typename T>(T) {
      visit_unit<T>(params.unit, [&]<int kUnit>() {
        params.has_pixels ? launch_early<interleave_phases_kernel<T, kUnit, true>>(
                                site_, grid, kPhasesThreads, 0, params)
                          : launch_early<interleave_phases_kernel<T, kUnit, false>>(
                                site_, grid, kPhasesThreads, 0, params);
      });
    });
  }

  void transpose(const void* pixels, void* planes, int64_t images) const {
    TransposeParams params = shape_.to_planes;
    params.planes = planes;
    params.pixels = pixels;
    params.tiles = static_cast<int>(images * params.image_tiles);
    params.unit = fit_unit_to_address(planes, size_of(problem_.dtype), params.unit);
    const Grid grid(count_loop_blocks(params.tiles, kPhasesThreads / 32));
    const auto launch = [&]<typename T>(T) {
      visit_unit<T>(params.unit, [&]<int kUnit>() {
        launch_early<transpose_kernel<T, kUnit>>(site_, grid, kPhasesThreads, 0, params);
      });
    };
    size_of(problem_.dtype) == 4 ? launch(uint32_t{}) : launch(uint16_t{});
  }

  const LaunchSite& site_;
  const ConvProblem& problem_;
  const PhasesShape& shape_;
  const Buffers& buffers_;
  const CudaContext context_;
};

}  // namespace

void launch_cuda_phases(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& shape = geometry_of<PhasesShape>(plan);
  const PhasesLaunch launch(site, shape, buffers);
  switch (shape.form) {
    case PhasesForm::kChannels:
    case PhasesForm::kTransposed:
      return launch.run_chunks();
    case PhasesForm::kViews:
      return launch.run_views();
    case PhasesForm::kRows:
      return launch.run_rows();
  }
}

}  // namespace convx
