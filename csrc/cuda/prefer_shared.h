// How multiprocessors divide the memory that is both L1 cache and shared memory.
#pragma once

#include <cuda_runtime.h>

#include "cuda/check.h"
#include "cuda/per_device.h"

namespace convx {

// Gives the kernel the largest share of it as shared memory, the first time on each device. A
// multiprocessor changes the share only while no block runs there: a small kernel between kernels
// that need all of it would otherwise neither start before the previous one has ended, nor let the
// next one start.
template <auto kKernel>
void prefer_shared_memory(const LaunchSite& site) {
  static PerDevice preferred;
  int device = 0;
  check_cuda(site, cudaGetDevice(&device), "reading the current device");
  preferred.get(device, [&] {
    check_cuda(site,
               cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel),
                                    cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               "choosing the share of shared memory");
    return 1;
  });
}

}  // namespace convx
