// In place of csrc's.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>

#include "device/ring_cursor.cuh"
#include "device/shared_memory.cuh"

namespace convx {

struct EmulatedBarrier {
  int threads = 0, arrived = 0;
  uint32_t phase = 0;
};
inline std::map<uint32_t, EmulatedBarrier> emulated_barriers;

inline void init_barrier(uint32_t barrier, int arrivals) {
  emulated_barriers[barrier] = {arrivals};
}
inline void fence_barrier_init() {}
inline void fence_async_proxy() {}

inline void arrive(uint32_t barrier) {
  EmulatedBarrier& b = emulated_barriers.at(barrier);
  if (++b.arrived == b.threads) {
    b.arrived = 0;
    ++b.phase;
  }
}

// Copies are done at once; who expects one arrives with it.
inline void arrive_expecting(uint32_t, uint32_t) {}
inline void bulk_copy(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(source) % 16 != 0) {
    emulator::fault = "misaligned copy";
  }
  std::memcpy(shared_pointer<uint4>(destination), source, bytes);
  arrive(barrier);
}

inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  const EmulatedBarrier& b = emulated_barriers.at(barrier);
  if ((b.phase & 1) != parity) return;
  emulator::running->entered = b.phase;
  emulator::running->phase = &b.phase;
  for (int tries = 0; emulator::running->waits(); ++tries) {
    if (tries > 100000) {
      std::fprintf(stderr, "thread %d waits for ever\n", threadIdx.x);
      std::abort();
    }
    emulator::yield();
  }
  emulator::running->phase = nullptr;
}

}  // namespace convx
