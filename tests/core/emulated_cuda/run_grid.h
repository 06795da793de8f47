// Runs all blocks of a kernel, one after the other. Include before the kernel.
#pragma once

#include "core/problem.h"
#include "emulator.h"

namespace convx {

// What a kernel declares as its shared memory: the largest a block can have,
// and a margin behind it.
constexpr int64_t kSharedBytes = 232448;
constexpr int64_t kMargin = 4096;
extern unsigned char shared_bytes[kSharedBytes + kMargin];

}  // namespace convx

namespace emulator {

// run(element): the kernel for elements of that type. False if a block wrote
// behind its shared memory.
template <typename Run>
bool run_grid(convx::DType dtype, int64_t blocks, int threads, int64_t bytes, const Run& run) {
  constexpr unsigned char kPoison = 0xff;  // a NaN in every type
  std::vector<Fiber> fibers(static_cast<size_t>(threads));
  blockDim.x = threads;
  for (int64_t block = 0; block < blocks; ++block) {
    blockIdx.x = static_cast<int>(block);
    std::memset(convx::shared_bytes, kPoison, static_cast<size_t>(bytes + convx::kMargin));
    run_block(fibers, [&] {
      if (dtype == convx::DType::kFloat32) return run(float{});
      if (dtype == convx::DType::kFloat16) return run(__half{});
      run(__nv_bfloat16{});
    });
    const unsigned char* behind = convx::shared_bytes + bytes;
    const unsigned char* end = behind + convx::kMargin;
    if (std::any_of(behind, end, [](auto b) { return b != kPoison; })) return false;
  }
  return true;
}

}  // namespace emulator
