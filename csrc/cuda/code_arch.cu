#include "cuda/code_arch.h"

#include <cuda_runtime_api.h>

#include "cuda/per_device.h"

namespace convx {
namespace {

// Any kernel will do: all are compiled for the same architectures.
__global__ void any_kernel() {}

}  // namespace

int find_code_arch() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) {
    cudaGetLastError();  // clears the error, so that the next check does not report it
    return 0;
  }
  return attributes.ptxVersion;
}

bool code_can_start_early() {
  static PerDevice archs;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return archs.get(device, find_code_arch) >= 90;
}

}  // namespace convx
