// Just enough of CUDA to run a kernel of csrc on the host, compiled from its own source: the
// threads of a block are fibers, switched at barriers and where lanes exchange values. For kernels
// without tensor cores whose threads all meet the same of either.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/scalar_types.h"

#define __CUDACC__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::max;
using std::min;

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

using __half = convx::Half;
using __nv_bfloat16 = convx::BFloat16;
struct __half2 {
  __half low, high;
};
struct __nv_bfloat162 {
  __nv_bfloat16 low, high;
};
inline float __half2float(__half value) { return value; }
inline float __low2float(__half2 value) { return value.low; }
inline float __high2float(__half2 value) { return value.high; }
inline __half __float2half_rn(float value) { return __half::from_float(value); }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16::from_float(value); }
inline __half2 __floats2half2_rn(float low, float high) {
  return {__float2half_rn(low), __float2half_rn(high)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
inline uint32_t __float_as_uint(float value) { return convx::float_to_bits(value); }
inline float __uint_as_float(uint32_t bits) { return convx::bits_to_float(bits); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}
template <typename T>
T __ldg(const T* address) {
  return *address;
}
// Addresses of shared memory are for instructions that only a GPU has.
inline size_t __cvta_generic_to_shared(const void*) { return 0; }

struct EmulatedIndex {
  int x = 0;
};
inline EmulatedIndex threadIdx, blockIdx, blockDim;

namespace emulator {

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
};

inline ucontext_t scheduler;
inline Fiber* running = nullptr;
inline const std::function<void()>* body = nullptr;

inline void enter() {
  (*body)();
  running->done = true;
  swapcontext(&running->context, &scheduler);
}

// Runs one block. Threads go on together from barrier to barrier.
inline void run_block(std::vector<Fiber>& fibers, const std::function<void()>& kernel) {
  constexpr size_t kStackBytes = 64 * 1024;
  body = &kernel;
  for (Fiber& fiber : fibers) {
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (size_t left = fibers.size(); left > 0;) {
    left = 0;
    for (size_t i = 0; i < fibers.size(); ++i) {
      if (fibers[i].done) continue;
      running = &fibers[i];
      threadIdx.x = static_cast<int>(i);
      swapcontext(&scheduler, &running->context);
      left += !running->done;
    }
  }
}

}  // namespace emulator

inline void __syncthreads() {
  const int thread = threadIdx.x;
  swapcontext(&emulator::running->context, &emulator::scheduler);
  threadIdx.x = thread;
}

// All lanes of a warp take part. The first switch lets them all write, the second all read.
inline uint32_t __shfl_sync(unsigned, uint32_t value, int lane) {
  constexpr int kMostThreads = 1024;
  static uint32_t values[kMostThreads];
  const int thread = threadIdx.x;
  values[thread] = value;
  __syncthreads();
  const uint32_t got = values[thread / 32 * 32 + lane];
  __syncthreads();
  return got;
}
inline float __shfl_xor_sync(unsigned mask, float value, int distance) {
  const int lane = threadIdx.x % 32 ^ distance;
  return __uint_as_float(__shfl_sync(mask, __float_as_uint(value), lane));
}
