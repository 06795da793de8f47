// For warp-specialized blocks: registers by role, named barriers, and the election of a lane.
#pragma once

#include <cstdint>

namespace convx {

// setmaxnreg: both functions are called by all threads of a warpgroup (sm_90a). take_registers
// waits until the block has enough free registers, forever if it never has.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// True for one lane of the warp, always the same. All lanes must call it (sm_90). Call it directly
// in the condition of a branch: then the compiler knows that one lane runs there.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

// Named barrier kId (1 to 15) of kThreads threads. wait_at_barrier arrives and waits; pass_barrier
// only arrives.
template <int kId, int kThreads>
__device__ __forceinline__ void wait_at_barrier() {
  asm volatile("bar.sync %0, %1;\n" ::"n"(kId), "n"(kThreads) : "memory");
}
template <int kId, int kThreads>
__device__ __forceinline__ void pass_barrier() {
  asm volatile("bar.arrive %0, %1;\n" ::"n"(kId), "n"(kThreads) : "memory");
}

__device__ __forceinline__ void wait_at_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void pass_barrier(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// Waits at the named barrier with the warpgroup's 128 threads, and returns whether `holds` is true
// for any of them.
__device__ __forceinline__ bool any_in_warpgroup(int id, bool holds) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %2, 0;\n"
      "bar.red.or.pred q, %1, 128, p;\nselp.b32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(static_cast<int>(holds))
      : "memory");
  return any != 0;
}

}  // namespace convx
