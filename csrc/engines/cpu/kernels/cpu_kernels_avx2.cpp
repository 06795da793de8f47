// Kernels for AVX2 with FMA. Every header is included before the target pragma: an inline function
// from a header must not be compiled for the wider instruction set, because the linker may keep
// that copy for the whole program.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/scalar_types.h"
#include "engines/cpu/kernels/cpu_kernels.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
// Applies to the end of the file, where templates are instantiated.
#pragma GCC target("avx2,fma")
#endif

namespace convx {
namespace avx2 {

constexpr int kVectorBytes = 32;
constexpr int kRowsOfTwo = 6;
constexpr int kRowsOfFour = 3;
constexpr int kDotColumnsOfOne = 10;
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

}  // namespace avx2

const CpuKernelTable* avx2_kernels() { return &avx2::kTable; }

}  // namespace convx

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

namespace convx {

const CpuKernelTable* avx2_kernels() { return nullptr; }

}  // namespace convx

#endif
