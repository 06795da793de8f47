// Kernels for AVX-512 as of Skylake-SP. Every header is included before the target pragma: an
// inline function from a header must not be compiled for the wider instruction set, because the
// linker may keep that copy for the whole program.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/scalar_types.h"
#include "engines/cpu/kernels/cpu_kernels.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
// Applies to the end of the file, where templates are instantiated.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

namespace convx {
namespace avx512 {

constexpr int kVectorBytes = 64;
constexpr int kRowsOfTwo = 14;
constexpr int kRowsOfFour = 6;
constexpr int kDotColumnsOfOne = 12;
constexpr int kDotColumnsOfTwo = 10;
constexpr int kDotColumnsOfFour = 6;
constexpr int kPanelVectors = 4;
constexpr int kRunPixelsOfOne = 14;
constexpr int kRunPixelsOfTwo = 14;
constexpr int kRunPixelsOfPanel = 7;
constexpr int kPixelRowsOfOne = 8;
constexpr int kPixelRowsOfTwo = 7;
constexpr int kPixelRowsOfPanel = 6;

#include "engines/cpu/kernels/kernels.inl"

}  // namespace avx512

const CpuKernelTable* avx512_kernels() { return &avx512::kTable; }

}  // namespace convx

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

namespace convx {

const CpuKernelTable* avx512_kernels() { return nullptr; }

}  // namespace convx

#endif
