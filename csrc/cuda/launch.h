// The only place where kernels are launched: launch, check, and opt in to large shared memory.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/check.h"
#include "cuda/device_query.h"

namespace convx {

// The shared memory that a block may use without opting in, on every architecture.
constexpr int64_t kDefaultSharedBytes = 48 * 1024;

// The blocks of a launch. Planners count them in 64 bits and refuse what no grid can hold.
struct Grid : dim3 {
  Grid(int64_t x, int64_t y = 1, int64_t z = 1)
      : dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)) {}
};

// Raises the kernel's dynamic shared memory limit to the device's, the first time it is needed on
// each device; repeating it is harmless.
template <auto kKernel>
void opt_in_shared_bytes(const LaunchSite& site) {
  static PerDevice limits;
  int device = 0;
  check_cuda(site, cudaGetDevice(&device), "reading the current device");
  limits.get(device, [&] {
    int limit = 0;
    check_cuda(site,
               cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "reading the shared memory limit");
    check_cuda(site,
               cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, limit),
               "raising the shared memory limit");
    return limit;
  });
}

template <auto kKernel, typename... Args>
void launch_kernel(const LaunchSite& site, const Grid& grid, int threads, int64_t shared_bytes,
                   const Args&... args) {
  if (shared_bytes > kDefaultSharedBytes) opt_in_shared_bytes<kKernel>(site);
  kKernel<<<grid, static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes), site.stream>>>(
      args...);
  check_cuda(site, cudaGetLastError(), "kernel launch");
}

// Launches clusters of so many neighbouring blocks (device/cluster.cuh), at most 8, by programmatic
// dependent launch (sm_90). The grid's x extent is a multiple of cluster_blocks.
template <auto kKernel, typename... Args>
void launch_clusters(const LaunchSite& site, const Grid& grid, int cluster_blocks, int threads,
                     int64_t shared_bytes, const Args&... args) {
  if (shared_bytes > kDefaultSharedBytes) opt_in_shared_bytes<kKernel>(site);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster_blocks);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = site.stream;
  config.attrs = attributes;
  config.numAttrs = cluster_blocks > 1 ? 2 : 1;
  check_cuda(site, cudaLaunchKernelEx(&config, kKernel, args...), "kernel launch");
}

// Launches by programmatic dependent launch (device/dependent_launch.cuh), which overlaps with
// the end of the previous kernel. Code for GPUs before sm_90 is launched in the ordinary way.
template <auto kKernel, typename... Args>
void launch_early(const LaunchSite& site, const Grid& grid, int threads, int64_t shared_bytes,
                  const Args&... args) {
  if (!code_can_start_early()) {
    return launch_kernel<kKernel>(site, grid, threads, shared_bytes, args...);
  }
  launch_clusters<kKernel>(site, grid, 1, threads, shared_bytes, args...);
}

// Blocks for a grid-stride loop over items: enough to fill any device, few enough to launch fast.
inline unsigned count_loop_blocks(int64_t items, int threads) {
  const int64_t blocks = (items + threads - 1) / threads;
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, 65536));
}

}  // namespace convx
