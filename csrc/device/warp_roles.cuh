// For blocks whose warps have different roles: registers by role, barriers of some of the threads,
// and one lane that acts for its warp.
#pragma once

#include <cstdint>

namespace convx {

// By all threads of a warpgroup (sm_90a). Asking for more than the block has left waits for ever.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// True for one lane of a warp, always the same; all lanes must come here (sm_90). Right in the
// condition of a branch, the compiler takes it from there that one lane runs.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

// Barrier kId (1 to 15) of kThreads threads: those that wait, and those that only say they were
// here.
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
// Whether it holds for any thread of the warpgroup that waits there.
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
