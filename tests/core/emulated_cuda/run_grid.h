// Runs all blocks of a kernel, one after the other. Include before the kernel.
#pragma once

#include "clusters.h"
#include "core/problem.h"
#include "emulator.h"

namespace emulator {

// The largest shared memory a block can have, and a margin behind it.
constexpr int64_t kSharedBytes = 232448;
constexpr int64_t kMargin = 4096;

// memory: what the kernel declares as its shared memory, with the margin behind these bytes of it.
// False if a block wrote there.
inline bool run_blocks(int64_t blocks, int threads, void* memory, int64_t bytes,
                       const std::function<void()>& kernel) {
  auto* const shared = static_cast<unsigned char*>(memory);
  const unsigned char* const behind = shared + bytes;
  blockDim.x = threads;
  gridDim.x = static_cast<int>(blocks);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    if (cluster_blocks > 1) {
      if (!run_cluster(static_cast<size_t>(threads), shared, static_cast<size_t>(bytes), kMargin,
                       kernel)) {
        return false;
      }
      continue;
    }
    std::memset(memory, kPoison, static_cast<size_t>(bytes + kMargin));
    run_block(static_cast<size_t>(threads), kernel);
    if (std::any_of(behind, behind + kMargin, [](auto b) { return b != kPoison; })) return false;
  }
  return true;
}

}  // namespace emulator

// The shared memory of the block that runs. Kernels have several names for it.
extern "C" unsigned char emulated_shared_memory[emulator::kSharedBytes + emulator::kMargin];

namespace emulator {

// Calls visit with a value of the type.
template <typename Visit>
void visit_type(convx::DType dtype, const Visit& visit) {
  if (dtype == convx::DType::kFloat32) return visit(float{});
  if (dtype == convx::DType::kFloat16) return visit(__half{});
  visit(__nv_bfloat16{});
}

// run(element): the kernel for elements of that type, with the emulated shared memory.
template <typename Run>
bool run_grid(convx::DType dtype, int64_t blocks, int threads, int64_t bytes, const Run& run) {
  return run_blocks(blocks, threads, emulated_shared_memory, bytes,
                    [&] { visit_type(dtype, run); });
}

}  // namespace emulator
