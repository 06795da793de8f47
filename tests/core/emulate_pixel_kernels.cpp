// The kernels of cuda_pixels in ieee precision, run on the host from their own
// source, with emulated tensor cores.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_pack.h"
#include "emulate_pixel_kernels.h"
#include "engines/cuda_pixels/pixel_wgmma.cuh"
#include "engines/sum_partials.cuh"

namespace convx {

extern char unaligned[];  // what the kernel declares as its shared memory

namespace {

template <int kFilters, int kBlocks, bool kFolded, bool kPaired>
bool multiply(const PixelShape& shape, const PixelParams& p) {
  return emulator::run_blocks(shape.grid, kPixelThreads, unaligned, shape.shared_bytes, [&] {
    pixel_wgmma_kernel<TensorMath::kIeee, kBlocks, kFilters, kFolded, kPaired>(p);
  });
}

bool multiply(const PixelShape& shape, const PixelParams& p) {
  if (shape.paired) {
    return shape.filters == 96 ? multiply<96, 1, true, true>(shape, p)
                               : multiply<64, 2, true, true>(shape, p);
  }
  if (shape.folded) {
    return shape.filters == 96 ? multiply<96, 1, true, false>(shape, p)
                               : multiply<64, 2, true, false>(shape, p);
  }
  return shape.filters == 128 ? multiply<128, 1, false, false>(shape, p)
                              : multiply<64, 2, false, false>(shape, p);
}

}  // namespace

const char* emulate_pixels(const ConvProblem& problem, const PixelFit& fit, Buffers buffers) {
  const int64_t bytes = fit.shape.packed_bytes + fit.shape.partial_bytes;
  std::vector<uint4> workspace(static_cast<size_t>(bytes / 16 + 1));
  std::memset(workspace.data(), emulator::kPoison, workspace.size() * 16);
  buffers.workspace = workspace.data();
  emulator::shared_memory = unaligned;
  emulator::shared_start = 16;
  emulator::fault = nullptr;
  const PixelParams params = make_pixel_params(problem, fit, buffers);
  emulate_pack<TensorMath::kIeee, FilterOrder::kSwizzled>(fit.shape, params, problem.groups);
  if (!multiply(fit.shape, params)) return "a block wrote behind its shared memory";
  if (fit.shape.splits > 1) sum_partials<float>(LaunchSite{}, params);
  return emulator::fault;
}

}  // namespace convx
