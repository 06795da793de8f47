// Just enough of CUDA to run a kernel of csrc on the host, compiled from its own source: the
// threads of a block are fibers, switched at barriers. Headers in the folders beside this stand for
// those of csrc that hold a GPU's own instructions.
#pragma once

#include <ucontext.h>

#include <math.h>
#include <setjmp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
#define __maxnreg__(...)
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::max;
using std::min;

namespace emulator {

constexpr unsigned char kPoison = 0xff;  // a NaN in every type
inline const char* fault = nullptr;      // what a GPU would have stopped at

template <typename T>
void check_alignment(const T* address) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(T) != 0) fault = "misaligned vector";
}
template <typename T>
T& assign_vector(T& to, const T& from) {
  check_alignment(&to);
  check_alignment(&from);
  std::memmove(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(T));
  return to;
}

}  // namespace emulator

struct alignas(8) uint2 {
  uint32_t x, y;
  uint2& operator=(const uint2& from) { return emulator::assign_vector(*this, from); }
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
  uint4& operator=(const uint4& from) { return emulator::assign_vector(*this, from); }
};
struct alignas(8) float2 {
  float x, y;
  float2& operator=(const float2& from) { return emulator::assign_vector(*this, from); }
};
struct alignas(16) float4 {
  float x, y, z, w;
  float4& operator=(const float4& from) { return emulator::assign_vector(*this, from); }
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

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
// Threads run one after the other.
inline int atomicAdd(int* address, int value) {
  const int before = *address;
  *address += value;
  return before;
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
inline int __popc(uint32_t word) { return std::popcount(word); }
inline int __ffs(int word) { return word == 0 ? 0 : std::countr_zero(uint32_t(word)) + 1; }
template <typename T>
T __ldg(const T* address) {
  emulator::check_alignment(address);
  return *address;
}

struct EmulatedIndex {
  int x = 0, y = 0, z = 0;
};
inline EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// A thread.
struct Fiber {
  jmp_buf place;
  std::unique_ptr<char[]> stack;
  bool done = false;
  const unsigned* phase = nullptr;  // of the barrier it waits at, and
  unsigned entered = 0;             // the phase it has to see the end of

  bool waits() const { return phase != nullptr && *phase == entered; }
};

inline jmp_buf scheduler;
inline Fiber* running = nullptr;
inline const std::function<void()>* body = nullptr;
inline std::vector<Fiber> fibers;  // of the block that runs; they stay for others
inline int alive = 0;              // threads of the block that have not returned
inline bool descending = false;    // which thread goes first
inline int64_t steps = 0;          // waits begun and threads ended: nothing else is progress

inline void yield() {
  if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}

// Lanes of the running thread's warp that have not returned.
inline int64_t count_lanes() {
  const auto first = fibers.begin() + threadIdx.x / 32 * 32;
  return std::count_if(first, first + 32, [](const Fiber& f) { return !f.done; });
}

// Waits for the end of a phase, which try_to_end may bring about.
template <typename TryToEnd>
void wait_for(const unsigned& phase, const TryToEnd& try_to_end) {
  ++steps;
  running->entered = phase;
  running->phase = &phase;
  while (running->waits()) {
    try_to_end();
    if (running->waits()) yield();
  }
  running->phase = nullptr;
}

// What threads wait at until enough of them are there.
class Barrier {
 public:
  // Whether it holds for any of them.
  bool wait(int threads, bool holds = false) {
    return wait([&] { return arrived_ >= threads; }, holds);
  }
  // The same for all threads that have not returned.
  bool wait_for_all(bool holds = false) {
    return wait([&] { return arrived_ >= alive; }, holds);
  }
  // The same for the lanes of a warp that have not returned.
  bool wait_for_warp(bool holds = false) {
    return wait([&] { return arrived_ >= count_lanes(); }, holds);
  }
  // Arrives without waiting.
  void pass(int threads) {
    if (++arrived_ >= threads) end_phase();
  }

 private:
  template <typename Complete>
  bool wait(const Complete& complete, bool holds) {
    any_ |= holds;
    ++arrived_;
    wait_for(phase_, [&] {
      if (complete()) end_phase();
    });
    return found_;
  }

  void end_phase() {
    found_ = any_;
    any_ = false;
    arrived_ = 0;
    ++phase_;
  }

  int arrived_ = 0;
  unsigned phase_ = 0;
  bool any_ = false, found_ = false;
};

constexpr int kMaxWarps = 32;
inline Barrier block_barriers[16];  // __syncthreads is number 0
inline Barrier warp_barriers[kMaxWarps];

inline Barrier& warp_barrier() { return warp_barriers[threadIdx.x / 32]; }

// What a fiber does, block after block.
inline void enter() {
  for (;;) {
    yield();
    (*body)();
    running->done = true;
    --alive;
    ++steps;
  }
}

inline void resume(Fiber& fiber, int thread) {
  running = &fiber;
  threadIdx.x = thread;
  if (!_setjmp(scheduler)) _longjmp(fiber.place, 1);
}

// From here on it can be resumed. A context is for this first time; then jumps are enough, and much
// faster.
inline void start(Fiber& fiber) {
  constexpr size_t kStackBytes = 64 * 1024;
  fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  running = &fiber;
  if (!_setjmp(scheduler)) setcontext(&context);
}

// Threads of the block that wait for the other blocks of its cluster (clusters.h).
inline int waiting_for_cluster = 0;
// The block's rank in its cluster. Addresses of shared memory hold it from kRankBit on.
inline uint32_t cluster_rank = 0;
inline constexpr int kRankBit = 24;

// Prepares a block's threads.
inline void start_block(size_t threads) {
  while (fibers.size() < threads) start(fibers.emplace_back());
  for (size_t i = 0; i < fibers.size(); ++i) {
    fibers[i].done = i >= threads;
    fibers[i].phase = nullptr;
  }
  alive = static_cast<int>(threads);
  waiting_for_cluster = 0;
}

// Runs the block until its threads have returned, or wait for their cluster. Threads go on together
// from barrier to barrier.
inline void resume_block(size_t threads, const std::function<void()>& kernel) {
  body = &kernel;
  // Those that wait are asked again only where nobody else can go on.
  int64_t asked_at = -1;  // when they were asked the last time
  for (bool idle = false; alive > waiting_for_cluster;) {
    const bool ask_all = idle;
    if (ask_all && asked_at == steps) {
      std::fprintf(stderr, "%d threads of a block wait for ever\n", alive);
      std::abort();
    }
    if (ask_all) asked_at = steps;
    idle = true;
    for (size_t turn = 0; turn < threads; ++turn) {
      const size_t i = descending ? threads - 1 - turn : turn;
      if (fibers[i].done || (fibers[i].waits() && !ask_all)) continue;
      idle = false;
      resume(fibers[i], static_cast<int>(i));
    }
  }
}

inline void run_block(size_t threads, const std::function<void()>& kernel) {
  start_block(threads);
  resume_block(threads, kernel);
}

}  // namespace emulator

inline void __syncthreads() { emulator::block_barriers[0].wait_for_all(); }
inline int __syncthreads_or(int holds) {
  return emulator::block_barriers[0].wait_for_all(holds != 0);
}

// Of whole warps.
inline void __syncwarp() { emulator::warp_barrier().wait_for_warp(); }
inline bool __any_sync(unsigned, bool holds) {
  return emulator::warp_barrier().wait_for_warp(holds);
}
inline bool __all_sync(unsigned mask, bool holds) { return !__any_sync(mask, !holds); }
