#include "engines/cpu/kernels/cpu_kernels.h"

#include <cstdlib>

namespace convx {
namespace {

bool can_run_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool can_run_avx512() {
#if defined(__x86_64__)
  return can_run_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

const CpuKernelTable& choose_table() {
  const char* text = std::getenv("CONVX_SIMD_BYTES");
  const int limit = text ? std::atoi(text) : 64;
  if (limit >= 64 && avx512_kernels() && can_run_avx512()) return *avx512_kernels();
  if (limit >= 32 && avx2_kernels() && can_run_avx2()) return *avx2_kernels();
  return *baseline_kernels();
}

}  // namespace

const CpuKernelTable& cpu_kernel_table() {
  static const CpuKernelTable& table = choose_table();
  return table;
}

template <>
const CpuKernels<float>& find_kernels<float>(DType dtype) {
  const CpuKernelTable& table = cpu_kernel_table();
  if (dtype == DType::kFloat16) return table.float16;
  if (dtype == DType::kBFloat16) return table.bfloat16;
  return table.float32;
}

template <>
const CpuKernels<double>& find_kernels<double>(DType) {
  return cpu_kernel_table().float64;
}

}  // namespace convx
