// Turns CUDA and cuBLAS statuses into errors that name the engine and the problem.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "core/problem.h"

namespace convx {

// The engine and the problem, for error messages; the stream to launch on; and CudaContext's
// get_blas, for engines that call cuBLAS.
struct LaunchSite {
  const char* engine;
  const ConvProblem* problem;
  cudaStream_t stream;
  void* (*get_blas)() = nullptr;
};

[[noreturn]] inline void throw_launch_error(const LaunchSite& site, const std::string& what,
                                            const std::string& status) {
  throw std::runtime_error(std::string(site.engine) + ": " + what + " failed: " + status + " (" +
                           to_text(*site.problem) + ", " + name_of(site.problem->pass) + ")");
}

inline void check_cuda(const LaunchSite& site, cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw_launch_error(site, what,
                     std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status));
}

}  // namespace convx
