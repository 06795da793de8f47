// The pointwise kernels themselves, run on the host, with emulated tensor
// cores.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_pointwise.h"
#include "engines/cuda_pointwise/pointwise_kernel.cuh"

namespace convx {

const char *emulate_pointwise(const ConvProblem &problem,
                              const PointwiseFit &fit, const Buffers &buffers) {
  const PointwiseParams params = make_pointwise_params(problem, fit, buffers);
  emulator::use_shared_memory(emulated_shared_memory, 16);
  emulator::fault = nullptr;
  const bool forward = problem.pass == Pass::kForward;
  const auto *source = static_cast<const char *>(params.source);
  emulator::copied_begin = source;
  emulator::copied_end =
      source + size_of(problem.dtype) * problem.N * problem.groups *
                   params.group_sources *
                   (forward ? problem.H * problem.W : problem.P * problem.Q);
  const auto run = [&] {
    switch (fit.shape.math) {
    case TensorMath::kTf32:
      return pointwise_kernel<TensorMath::kTf32>(params);
    case TensorMath::kIeee:
      return pointwise_kernel<TensorMath::kIeee>(params);
    case TensorMath::kBFloat16:
      return pointwise_kernel<TensorMath::kBFloat16>(params);
    case TensorMath::kFloat16:
      return pointwise_kernel<TensorMath::kFloat16>(params);
    default:
      throw std::logic_error("no such kernel");
    }
  };
  const PointwiseShape &shape = fit.shape;
  if (!emulator::run_blocks(shape.grid, kPointwiseThreads,
                            emulated_shared_memory, shape.shared_bytes, run)) {
    return "a block wrote behind its shared memory";
  }
  if (!end_bulk_stores())
    return "a block ended before its copies";
  return emulator::fault;
}

} // namespace convx
