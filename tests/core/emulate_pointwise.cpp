// The pointwise kernels themselves, run on the host, with emulated tensor cores.
#include "emulated_cuda/emulator.h"
//
#include "emulate_pointwise.h"
#include "engines/cuda_pointwise/pointwise_kernel.cuh"

namespace convx {

// What a kernel declares as its shared memory: the largest a block can have, and a margin behind
// it.
constexpr int kSharedBytes = 232448;
constexpr int kMargin = 4096;
alignas(16) char unaligned[kSharedBytes + kMargin];

const char* emulate_pointwise(const ConvProblem& problem, const PointwiseFit& fit,
                              const Buffers& buffers) {
  constexpr char kPoison = -1;  // a NaN in every type
  const PointwiseParams params = make_pointwise_params(problem, fit, buffers);
  emulator::shared_memory = unaligned;
  emulator::shared_start = 16;
  emulator::fault = nullptr;
  std::vector<emulator::Fiber> fibers(kPointwiseThreads);
  gridDim.x = fit.shape.grid;
  for (blockIdx.x = 0; blockIdx.x < fit.shape.grid; ++blockIdx.x) {
    std::memset(unaligned, kPoison, sizeof unaligned);
    emulator::run_block(fibers, [&] {
      switch (fit.shape.math) {
        case TensorMath::kTf32:
          return pointwise_kernel<TensorMath::kTf32>(params);
        case TensorMath::kIeee:
          return pointwise_kernel<TensorMath::kIeee>(params);
        case TensorMath::kBFloat16:
          return pointwise_kernel<TensorMath::kBFloat16>(params);
        case TensorMath::kFloat16:
          return pointwise_kernel<TensorMath::kFloat16>(params);
      }
    });
    const char* behind = unaligned + fit.shape.shared_bytes;
    if (std::any_of(behind, behind + kMargin, [](char b) { return b != kPoison; })) {
      return "a block wrote behind its shared memory";
    }
  }
  return emulator::fault;
}

}  // namespace convx
