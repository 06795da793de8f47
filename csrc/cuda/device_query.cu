#include "cuda/device_query.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace convx {
namespace {

// Any kernel will do: all are compiled for the same architectures.
__global__ void any_kernel() {}

// 10 * major + minor of the architecture that the code for the current device was compiled for. It
// is lower than the device's own if the code comes from PTX of an older one. 0 if there is no code.
int find_code_arch() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) {
    cudaGetLastError();  // clears the error, so that the next check does not report it
    return 0;
  }
  return attributes.ptxVersion;
}

[[noreturn]] void fail(const std::string& what, cudaError_t status) {
  throw std::runtime_error("reading " + what + " failed: " + cudaGetErrorString(status));
}

int read_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  const cudaError_t status = cudaDeviceGetAttribute(&value, attribute, device);
  if (status != cudaSuccess) {
    fail("the attributes of CUDA device " + std::to_string(device), status);
  }
  return value;
}

int read_code_arch(int device) {
  const int current = current_cuda_device();
  if (current == device) return find_code_arch();
  if (cudaSetDevice(device) != cudaSuccess) return 0;
  const int arch = find_code_arch();
  cudaSetDevice(current);
  return arch;
}

}  // namespace

bool code_can_start_early() {
  static PerDevice archs;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  return archs.get(device, find_code_arch) >= 90;
}

DeviceCaps query_cuda_caps(int device) {
  static std::mutex mutex;
  static std::unordered_map<int, DeviceCaps> known;
  std::lock_guard lock(mutex);
  if (auto found = known.find(device); found != known.end()) return found->second;
  DeviceCaps caps;
  caps.sm_count = read_attribute(cudaDevAttrMultiProcessorCount, device);
  caps.compute_major = read_attribute(cudaDevAttrComputeCapabilityMajor, device);
  caps.compute_minor = read_attribute(cudaDevAttrComputeCapabilityMinor, device);
  caps.code_arch = read_code_arch(device);
#ifdef CONVX_SM90A
  caps.wgmma = caps.compute_major == 9;
#endif
  caps.shared_bytes_per_block = read_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return known.emplace(device, caps).first->second;
}

int current_cuda_device() {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) fail("the current CUDA device", status);
  return device;
}

void bind_cuda_context(int device) {
  const cudaError_t status = cudaSetDevice(device);
  if (status != cudaSuccess) fail("the context of CUDA device " + std::to_string(device), status);
}

}  // namespace convx
