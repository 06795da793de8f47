// Kernels for the compiler's default target: SSE2 on x86-64, NEON on aarch64.
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/scalar_types.h"
#include "engines/cpu/kernels/cpu_kernels.h"

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

const CpuKernelTable* baseline_kernels() { return &baseline::kTable; }

}  // namespace convx
