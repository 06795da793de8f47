// The kernels of cuda_mma, run on the host from their own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_mma.h"
#include "engines/cuda/pixels/mma_kernel.cuh"
#include "engines/cuda/pixels/pack_pixel_filters.cuh"
#include "kernels/around_mma.h"

namespace convx {
namespace {

alignas(128) char block_memory[emulator::kSharedBytes + emulator::kMargin];

template <TensorMath kMath, int kFilters, int kBlocks, bool kFolded>
bool multiply(const PixelShape& shape, const PixelParams& p) {
  emulator::use_shared_memory(block_memory, 0);
  return emulator::run_blocks(p.tiles, kMmaThreads, block_memory, shape.shared_bytes, [&] {
    multiply_tile<kMath, kBlocks, kFilters, kFolded>(p, locate_tile(p, blockIdx.x), block_memory);
  });
}

template <TensorMath kMath>
bool run_phase(const LaunchSite& site, const PixelShape& shape, const PixelParams& p) {
  pack_pixel_filters<kMath, FilterOrder::kFragments>(site, shape, p);
  bool whole = false;
  if (shape.folded) {
    whole = multiply<kMath, 64, 2, true>(shape, p);
  } else if (shape.filters == 32) {
    whole = multiply<kMath, 32, 2, false>(shape, p);
  } else if (shape.filters == 64) {
    whole = shape.blocks == 1 ? multiply<kMath, 64, 1, false>(shape, p)
                              : multiply<kMath, 64, 2, false>(shape, p);
  } else if constexpr (kMath != TensorMath::kIeee) {
    whole = multiply<kMath, 128, 2, false>(shape, p);
  }
  if (shape.splits > 1) sum_partials(site, p, shape.splits);
  return whole;
}

bool run_phase(const LaunchSite& site, const PixelShape& shape, const PixelParams& p) {
  switch (shape.math) {
    case TensorMath::kTf32:
      return run_phase<TensorMath::kTf32>(site, shape, p);
    case TensorMath::kIeee:
      return run_phase<TensorMath::kIeee>(site, shape, p);
    case TensorMath::kBFloat16:
      return run_phase<TensorMath::kBFloat16>(site, shape, p);
    case TensorMath::kFloat16:
      return run_phase<TensorMath::kFloat16>(site, shape, p);
  }
  return false;
}

}  // namespace

const char* emulate_mma(const ConvProblem& problem, const MmaPlan& fit, Buffers buffers,
                        int64_t workspace_bytes) {
  std::vector<uint4> workspace(static_cast<size_t>(workspace_bytes / 16 + 1));
  std::memset(workspace.data(), emulator::kPoison, workspace.size() * 16);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  for (const PixelFit& phase : fit.phases) {
    const PixelParams params = make_pixel_params(problem, phase, buffers);
    if (!run_phase({"cuda_mma", &problem}, phase.shape, params)) {
      return "a block wrote behind its shared memory";
    }
  }
  return emulator::fault;
}

}  // namespace convx
