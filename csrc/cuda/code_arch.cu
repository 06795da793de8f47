#include "cuda/code_arch.h"

#include <cuda_runtime_api.h>

#include <atomic>

namespace convx {
namespace {

// Stands for all kernels: they are compiled for the same architectures.
__global__ void any_kernel() {}

}  // namespace

int find_code_arch() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) {
    cudaGetLastError();  // or the next check would find it
    return 0;
  }
  return attributes.ptxVersion;
}

bool code_can_start_early() {
  constexpr int kDevices = 64;  // more are asked every time
  static std::atomic<int> archs[kDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  int arch = device < kDevices ? archs[device].load(std::memory_order_relaxed) : 0;
  if (arch == 0) {
    arch = find_code_arch();
    if (device < kDevices) archs[device].store(arch, std::memory_order_relaxed);
  }
  return arch >= 90;
}

}  // namespace convx
