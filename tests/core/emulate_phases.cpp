// cuda_phases, launches and kernels, run on the host from its own source. The
// inner convolutions, which other engines compute, are computed by their
// definition.
#include "emulated_cuda/run_grid.h"
//
#include "core/gather_view.h"
#include "emulate_phases.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/input_grad/phases_launch.cu"

namespace convx {
namespace {

template <typename T>
void convolve(const ConvProblem& p, const Buffers& buffers) {
  const GatherView view = make_gather_view(p);
  const bool forward = p.pass == Pass::kForward;
  const T* source = static_cast<const T*>(forward ? buffers.x : buffers.y);
  T* target = static_cast<T*>(forward ? buffers.y : buffers.x);
  const Strides &from = view.source_strides, &to = view.target_strides;
  const auto sum_pixel = [&](const AxisPhase& rows, const AxisPhase& columns, int64_t n, int64_t g,
                             int64_t c, int64_t i, int64_t j) {
    double sum = 0;
    for (const AxisTap& r : rows.taps) {
      const int64_t row = i * rows.source_step + r.offset;
      if (row < 0 || row >= view.source_h) continue;
      for (const AxisTap& s : columns.taps) {
        const int64_t column = j * columns.source_step + s.offset;
        if (column < 0 || column >= view.source_w) continue;
        for (int64_t k = 0; k < view.source_channels; ++k) {
          const int64_t weight = g * p.filters_per_group() * p.w_strides.n +
                                 c * view.weight_target_stride + k * view.weight_source_stride +
                                 r.tap * p.w_strides.h + s.tap * p.w_strides.w;
          const int64_t value =
              n * from.n + (g * view.source_channels + k) * from.c + row * from.h + column * from.w;
          sum += double(to_accumulate(source[value])) *
                 double(to_accumulate(static_cast<const T*>(buffers.w)[weight]));
        }
      }
    }
    return sum;
  };
  const auto run_phase = [&](const AxisPhase& rows, const AxisPhase& columns) {
    for (int64_t n = 0; n < p.N; ++n) {
      for (int64_t g = 0; g < p.groups; ++g) {
        for (int64_t c = 0; c < view.target_channels; ++c) {
          for (int64_t i = 0; i < rows.count; ++i) {
            for (int64_t j = 0; j < columns.count; ++j) {
              target[n * to.n + (g * view.target_channels + c) * to.c +
                     (rows.target_start + i * rows.target_step) * to.h +
                     (columns.target_start + j * columns.target_step) * to.w] =
                  round_to<T>(
                      static_cast<accumulate_t<T>>(sum_pixel(rows, columns, n, g, c, i, j)));
            }
          }
        }
      }
    }
  };
  for (const AxisPhase& rows : view.rows) {
    for (const AxisPhase& columns : view.columns) run_phase(rows, columns);
  }
}

}  // namespace

void launch_cuda(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                 const CudaContext&) {
  // Only transposed input gradients keep their stride: engines of channels_last
  // run its phases.
  const bool strided = problem.stride != Hw{1, 1};
  if (strided && problem.x_strides.c != 1) emulator::fault = "an inner convolution has a stride";
  if (!strided && plan.engine == EngineId::kCudaPhases) {
    emulator::fault = "an inner convolution is none";
  }
  visit_device_type(problem.dtype, [&](auto type) { convolve<decltype(type)>(problem, buffers); });
}

const char* emulate_phases(const ConvProblem& problem, const Plan& plan, Buffers buffers) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  launch_cuda_phases({"cuda_phases", &problem}, plan, buffers);
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

}  // namespace convx
