// In place of csrc's: blocks run one after the other. Kernels without dynamic shared memory are
// taken for such whose threads have nothing to do with each other.
#pragma once

#include <cstddef>

#include "clusters.h"
#include "cuda/check.h"
#include "device/memory.cuh"
#include "run_grid.h"

namespace convx {

struct Grid {
  unsigned x, y, z;
  Grid(int64_t x, int64_t y = 1, int64_t z = 1)
      : x(static_cast<unsigned>(x)), y(static_cast<unsigned>(y)), z(static_cast<unsigned>(z)) {}
};

inline unsigned count_loop_blocks(int64_t, int) { return 1; }

template <auto kKernel, typename... Args>
void launch_kernel(const LaunchSite&, const Grid& grid, int threads, int64_t shared_bytes,
                   const Args&... args) {
  if (shared_bytes > 0) {
    constexpr uint32_t kStart = 16;  // what there is before it on a GPU need not be more
    emulator::use_shared_memory(emulated_shared_memory, kStart);
    for (blockIdx.y = 0; blockIdx.y < static_cast<int>(grid.y); ++blockIdx.y) {
      if (!emulator::run_blocks(grid.x, threads, emulated_shared_memory,
                                shared_bytes, [&] { kKernel(args...); })) {
        emulator::fault = "a block wrote behind its shared memory";
      }
    }
    return;
  }
  blockDim.x = threads;
  gridDim.x = static_cast<int>(grid.x);
  gridDim.y = static_cast<int>(grid.y);
  gridDim.z = static_cast<int>(grid.z);
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kKernel(args...);
      }
    }
  }
  blockIdx.y = blockIdx.z = 0;
}

template <auto kKernel, typename... Args>
void launch_clusters(const LaunchSite& site, const Grid& grid, int cluster_blocks, int threads,
                     int64_t shared_bytes, const Args&... args) {
  if (grid.x % static_cast<unsigned>(cluster_blocks) != 0 || cluster_blocks > 8) {
    emulator::fault = "clusters that a GPU would not launch";
  }
  emulator::cluster_blocks = cluster_blocks;
  launch_kernel<kKernel>(site, grid, threads, shared_bytes, args...);
  emulator::cluster_blocks = 1;
}

template <auto kKernel, typename... Args>
void launch_early(const LaunchSite& site, const Grid& grid, int threads, int64_t shared_bytes,
                  const Args&... args) {
  launch_kernel<kKernel>(site, grid, threads, shared_bytes, args...);
}

}  // namespace convx
