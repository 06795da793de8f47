// Kernels for the compiler's default target (SSE2 on x86-64, NEON on aarch64), and the choice of
// the widest ones that the machine can run.
#include "engines/cpu/kernels/cpu_kernels.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/scalar_types.h"

namespace convx {
namespace baseline {

constexpr int kVectorBytes = 16;
constexpr int kRowsOfTwo = 6;
constexpr int kRowsOfFour = 3;
constexpr int kDotColumnsOfOne = 8;
constexpr int kDotColumnsOfTwo = 5;
constexpr int kDotColumnsOfFour = 3;
constexpr int kPanelVectors = 2;
constexpr int kRunPixelsOfOne = 8;
constexpr int kRunPixelsOfTwo = 6;
constexpr int kRunPixelsOfPanel = 6;
constexpr int kPixelRowsOfOne = 8;
constexpr int kPixelRowsOfTwo = 6;
constexpr int kPixelRowsOfPanel = 6;

#include "engines/cpu/kernels/kernels.inl"

}  // namespace baseline

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
  return baseline::kTable;
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
