// Just enough of CUDA to run a kernel of csrc on the host, compiled from its own source: the
// threads of a block are fibers, switched at barriers. Headers in the folders beside this stand for
// those of csrc that hold a GPU's own instructions.
#pragma once

#include <ucontext.h>

#include <math.h>
#include <setjmp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "core/scalar_types.h"

#define __CUDACC__
#define __CUDA_ARCH_FEAT_SM90_ALL
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __host__
#define __noinline__
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::max;
using std::min;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

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
// Selects bytes of both words by the nibbles of a selector, b's above a's.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return word;
}
template <typename T>
T __ldg(const T* address) {
  return *address;
}

struct EmulatedIndex {
  int x = 0, y = 0;
};
inline EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// A thread. Its context is for the first time it runs; then jumps are enough, and much faster.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  std::unique_ptr<char[]> stack;
  bool started = false, done = false;
  const unsigned* phase = nullptr;  // of the barrier it waits at, and
  unsigned entered = 0;             // the phase it has to see the end of

  bool waits() const { return phase != nullptr && *phase == entered; }
};

inline jmp_buf scheduler;
inline Fiber* running = nullptr;
inline const std::function<void()>* body = nullptr;
inline const char* fault = nullptr;  // what a GPU would have stopped at
inline std::vector<Fiber>* block = nullptr;
inline int alive = 0;  // threads of the block that have not returned

inline void yield() {
  if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}

// Whether all lanes of the running thread's warp have returned or wait, here or elsewhere.
inline bool warp_waits() {
  const auto first = block->begin() + threadIdx.x / 32 * 32;
  return std::all_of(first, first + 32, [](const Fiber& f) { return f.done || f.waits(); });
}

// What threads wait at until enough of them are there.
class Barrier {
 public:
  // Whether it holds for any of them.
  bool wait(int threads, bool holds = false) {
    return wait([&] { return arrived_ >= std::min(threads, alive); }, holds);
  }
  // The same for lanes of a warp that are together: others have gone another way.
  bool wait_for_warp(bool holds = false) { return wait(warp_waits, holds); }

 private:
  template <typename Complete>
  bool wait(const Complete& complete, bool holds) {
    any_ |= holds;
    ++arrived_;
    running->entered = phase_;
    running->phase = &phase_;
    while (running->waits()) {
      if (complete()) {
        found_ = any_;
        any_ = false;
        arrived_ = 0;
        ++phase_;
      } else {
        yield();
      }
    }
    running->phase = nullptr;
    return found_;
  }

  int arrived_ = 0;
  unsigned phase_ = 0;
  bool any_ = false, found_ = false;
};

constexpr int kMaxWarps = 32;
inline Barrier block_barriers[16];  // __syncthreads is number 0
inline Barrier warp_barriers[kMaxWarps];

inline Barrier& warp_barrier() { return warp_barriers[threadIdx.x / 32]; }

inline void enter() {
  (*body)();
  running->done = true;
  --alive;
  _longjmp(scheduler, 1);
}

inline void resume(Fiber& fiber, int thread) {
  running = &fiber;
  threadIdx.x = thread;
  if (_setjmp(scheduler)) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

// Runs one block. Threads go on together from barrier to barrier.
inline void run_block(std::vector<Fiber>& fibers, const std::function<void()>& kernel) {
  constexpr size_t kStackBytes = 64 * 1024;
  body = &kernel;
  block = &fibers;
  for (Fiber& fiber : fibers) {
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
    fiber.started = fiber.done = false;
    fiber.phase = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  alive = static_cast<int>(fibers.size());
  // Those that wait are asked again only where nobody else can go on.
  for (bool idle = false; alive > 0;) {
    const bool ask_all = idle;
    idle = true;
    for (size_t i = 0; i < fibers.size(); ++i) {
      if (fibers[i].done || (fibers[i].waits() && !ask_all)) continue;
      idle = false;
      resume(fibers[i], static_cast<int>(i));
    }
  }
}

}  // namespace emulator

inline void __syncthreads() { emulator::block_barriers[0].wait(emulator::alive); }

// Whatever the mask says: the lanes that come here while the others of their warp wait elsewhere.
inline unsigned __activemask() { return 0; }
inline void __syncwarp(unsigned = 0) { emulator::warp_barrier().wait_for_warp(); }
inline bool __any_sync(unsigned, bool holds) {
  return emulator::warp_barrier().wait_for_warp(holds);
}
