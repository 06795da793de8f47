// Asynchronous copies to shared memory, one unit of up to 16 bytes at a time.
#pragma once

#include <type_traits>

#include "device/cp_async.cuh"

namespace convx {

// Calls visit with the number of elements of a unit as a compile-time constant.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_unit(int unit, const Visit& visit) {
  if constexpr (sizeof(T) == 2) {
    if (unit == 8) return visit(std::integral_constant<int, 8>{});
  }
  if (unit == 4) return visit(std::integral_constant<int, 4>{});
  if (unit == 2) return visit(std::integral_constant<int, 2>{});
  visit(std::integral_constant<int, 1>{});
}

// Starts the copy of a unit, or writes zeros if valid is false, in which case source is not read.
// A single 16-bit element goes through a register.
template <int kUnit, typename T>
__device__ __forceinline__ void copy_unit(T* destination, const T* source, bool valid) {
  constexpr int kBytes = kUnit * static_cast<int>(sizeof(T));
  if constexpr (kBytes >= 4) {
    copy_or_clear<kBytes>(destination, source, valid);
  } else {
    *destination = valid ? __ldg(source) : round_to<T>(0.0f);
  }
}

}  // namespace convx
